"""What the engine knows of a request: its pieces in order, a seat at each node a piece uses, and its client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serving.core.buffer import StreamBuffer
from serving.core.contract import Emit, Offer, Packed, Piece, Row, Steps
from serving.core.graph import Wiring

if TYPE_CHECKING:
    from serving.core.handoff import Handle
    from serving.core.runtime import ModelRun, NodeRun


class Seat:
    """A piece at a node. `row` is what the port sees; the rest is the engine's."""

    __slots__ = (
        "blocked",
        "collect",
        "done",
        "inflight",
        "inputs",
        "node",
        "offer",
        "outputs",
        "piece",
        "queued",
        "row",
        "solo",
    )

    def __init__(self, node: NodeRun, piece: PieceRun, row: Row) -> None:
        self.node = node
        self.piece = piece
        self.row = row
        self.inputs: dict[str, StreamBuffer] = {}
        self.outputs: dict[str, list[Outlet]] = {}
        self.collect: str | None = None  # the port whose items the generator waits for
        self.offer: Offer | None = None
        self.inflight = 0
        self.queued = False
        self.done = False
        self.blocked = False  # waits for room downstream
        self.solo = False  # its last step failed: runs alone once


@dataclass(slots=True)
class Outlet:
    """One end of an edge: a buffer at another seat, or the client (`seat` is None) of a request, in a piece."""

    port: str
    request: Request
    index: int
    seat: Seat | None = None
    buffer: StreamBuffer | None = None
    limit: int | None = None
    rate: float | None = None

    def full(self) -> bool:
        """The producer has to wait."""
        if self.limit is None:
            return False
        if self.buffer is not None:
            return self.buffer.full()
        return self.request.unread(self.index) >= self.limit


@dataclass(slots=True)
class Parked:
    """A piece off the device."""

    nodes: dict[str, Any]  # what each node saved
    pools: dict[str, Any]  # what each resource saved; of one that replays nothing
    stored: dict[str, int]  # units that each resource held


@dataclass(slots=True)
class Replay:
    """A node computes a prompt and what followed again, for a piece that came back."""

    node: str
    parked: Parked  # what it becomes again then
    port: str
    buffer: StreamBuffer  # the port's stream, as it was


@dataclass(slots=True)
class PieceRun:
    """A piece that was admitted, or waits to be."""

    request: Request
    index: int
    spec: Piece
    wiring: Wiring
    client: dict[str, StreamBuffer] = field(default_factory=dict)  # its client streams, by name
    slot: int = 0
    seats: dict[str, Seat] = field(default_factory=dict)
    owners: set[tuple[str, str]] = field(default_factory=set)  # (label, owner) to release with the piece
    open: int = 0  # seats that are not done
    leaving: bool = False  # is being preempted: no step of it begins
    parked: Parked | None = None  # what it had, on the host, until it is admitted again
    replay: Replay | None = None  # computes again what it had
    result: list[Any] = field(default_factory=list)
    lengths: int = 0

    def busy(self) -> bool:
        """A step in flight holds one of its seats."""
        return any(seat.inflight for seat in self.seats.values())


@dataclass(eq=False, slots=True)
class Request:
    """One submission. The engine alone touches it, on its own thread."""

    id: str
    model: ModelRun
    job: Any
    seed: int
    handle: Handle
    arrived: float
    session: str | None = None
    priority: int = 0  # higher ones are admitted first and preempted last
    live: bool = False  # played as it is made: outputs have due times
    spoken: bool = False  # a client stream of it is open: its frames come in real time
    in_flight: int = 1
    steps: Steps | None = None
    advancing: bool = False  # the generator runs in a host pool
    exhausted: bool = False
    awaiting: dict[int, Packed | None] = field(default_factory=dict)  # pieces whose results the generator waits for
    together: bool = False  # it wants them as a tuple
    running: dict[int, PieceRun] = field(default_factory=dict)
    made: int = 0  # pieces and emits that the generator has yielded
    head: int = 0  # the first of them whose output is not complete
    held: dict[int, list[tuple[str, Any, int]]] = field(default_factory=dict)  # outputs behind the head
    complete: set[int] = field(default_factory=set)  # finished behind the head
    owned: set[tuple[str, str]] = field(default_factory=set)  # (label, owner) to release with the request
    closed: bool = False
    holding: int = 0  # pieces that have a slot
    started: float | None = None  # admitted
    first_output: float | None = None
    played: float = 0.0  # seconds of rated output already delivered
    playhead: float = 0.0  # when the last of it has been played; a client that ran dry goes on with what comes
    backlog: int = 0  # items delivered that the client has not consumed
    events: list[Any] = field(default_factory=list)  # for the client, at the end of this pass

    def unread(self, index: int) -> int:
        """Items of part `index` that the client has not consumed: at the head it can, behind it they pile up."""
        return self.backlog if index == self.head else sum(count for _, _, count in self.held.get(index, ()))

    @property
    def clocked(self) -> bool:
        """Its next output has a time at which it is played, or its input comes as it is spoken."""
        return self.live and (self.first_output is not None or self.spoken)


@dataclass(slots=True)
class Reuse:
    """Positions of prompts, as the metrics count them."""

    asked: int = 0
    reused: int = 0


@dataclass(frozen=True, slots=True)
class Yielded:
    """What a generator gave when it was advanced in a host pool."""

    item: Piece | tuple[Piece, ...] | Emit | None = None  # None: it has ended
    error: BaseException | None = None


def advance(steps: Steps, value: Packed | tuple[Packed, ...] | None) -> Yielded:
    """Run a generator to its next yield."""
    try:
        return Yielded(steps.send(value))
    except StopIteration:
        return Yielded()
    except Exception as error:
        return Yielded(error=error)
