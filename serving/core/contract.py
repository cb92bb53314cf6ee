"""The interface between ports and the core: data and protocols, no engine, no I/O.

A *model* is a graph of *nodes* joined by *streams* of items; a request is a walk over it, cut into ordered
*pieces*. The engine asks a node what a row could do next (`offer`), gathers rows that may share a step, and runs
`stage -> launch -> settle` on them. Ports import this module, `serving.core.streams` (chunk policies),
`serving.resources`, `serving.attention` and `serving.errors`, and nothing else of `serving`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import IntEnum
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

MAIN = ("main",)


class Verdict(IntEnum):
    """A row after a step: has more work now, is idle until an input stream has a chunk, or is finished here."""

    AGAIN, WAIT, DONE = 0, 1, 2

    @staticmethod
    def until(done: np.ndarray) -> np.ndarray:
        """[n] DONE where `done` [n] bool holds, AGAIN elsewhere."""
        return np.multiply(done, _DONE, dtype=np.int64)


_DONE = int(Verdict.DONE)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A window of a stream, in item indices: context [start, fresh), new [fresh, stop), look-ahead [stop, seen)."""

    start: int
    fresh: int
    stop: int
    seen: int
    final: bool

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.fresh <= self.stop <= self.seen:
            raise ValueError(f"chunk bounds out of order: {self}")


class ChunkPolicy(Protocol):
    """When a consumer gets how much of a stream. Implementations: `serving.core.streams`."""

    def next(self, fresh: int, written: int, ended: bool) -> Chunk | None:
        """The next window after `fresh` consumed items, or None: not yet. Pure; `final` exactly once, even if empty."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One ordered stream a request. Ends are "node.port" or "client.name"; a "client" source comes from the caller."""

    source: str
    target: str
    policy: ChunkPolicy
    rate: float | None = None  # items a second when played: gives every chunk its due time
    limit: int | None = None  # buffered items before the source waits (a client source is refused)
    device: bool = False  # items stay on the device; the engine clones them out of static buffers


@dataclass(frozen=True, slots=True)
class Offer:
    """What a row could do in its node's next step. Asked on arrival or change: O(changes), never O(queued).

    `least < units` lets the scheduler split the offer: then every port in `take` has exactly `units` new items, a
    step takes the next ones, and the row is asked again. `repeats` promises that, unless the row ends, its next
    offer is this very object: step n+1 may launch before n is settled, so loop values live in device tables.
    """

    key: Hashable  # equal keys may share a step; never holds a step index
    units: int = 1  # most units (tokens, frames, samples) it can use now
    least: int = 1  # fewest; == units means: never split
    lanes: tuple[str, ...] = MAIN  # its sequences in this step, e.g. ("cond", "uncond")
    take: tuple[str, ...] = ()  # input ports whose chunk this step consumes
    repeats: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.units:
            raise ValueError(f"an offer needs 1 <= least <= units, got least={self.least}, units={self.units}")
        if self.repeats and (self.take or self.least != self.units):
            raise ValueError("a repeating offer takes no stream items and is never split")


@dataclass(slots=True)
class Packed:
    """Items of several rows, packed: leading size sum(lengths); row i owns lengths[i] >= 0. Values may be a dict."""

    values: Any
    lengths: np.ndarray

    @classmethod
    def one(cls, values: Any) -> Packed:
        """The items of a single row: an array, tensor or sequence, or a dict of them sharing their length."""
        first = next(iter(values.values())) if isinstance(values, dict) else values
        return cls(values, np.array([len(first)], dtype=np.int64))

    def row(self, i: int) -> Any:
        """Row i's items: a slice (view) of each value."""
        stop = int(self.lengths[: i + 1].sum())
        start = stop - int(self.lengths[i])
        if isinstance(self.values, dict):
            return {name: value[start:stop] for name, value in self.values.items()}
        return self.values[start:stop]


@dataclass(slots=True)
class Row:
    """A piece's seat at a node. `slot` indexes the node's device tables; `state` is the port's own."""

    slot: int
    seed: int
    knobs: Any
    chunks: dict[str, Chunk | None] = field(default_factory=dict)  # per input port: what may be taken now
    ended: dict[str, bool] = field(default_factory=dict)  # per input port: no more will come
    state: Any = None
    reused: int = 0  # first positions of its `Prefix` that the node's resources hold already; known after `begin`


@dataclass(slots=True)
class Batch:
    """One planned step. Tensors have bucket size; rows past `n` are sinks (slot 0). Keep no reference to them."""

    n: int  # rows that are real
    size: int  # rows with padding
    total: int  # tokens with padding: units over all lanes; packed row by row, a row's lanes one after another
    rows: Sequence[Row]
    slots: Tensor  # [size] int64, 0 = sink
    index: np.ndarray  # [n] the slots of the real rows, on the host
    units: np.ndarray  # [n] a lane
    lanes: Sequence[tuple[str, ...]]  # [n]
    ins: Mapping[str, Packed] = field(default_factory=dict)  # port -> items [start, seen) of the chunks taken
    taken: Mapping[str, Sequence[Chunk | None]] = field(default_factory=dict)  # port -> [n] those chunks
    use: dict[str, Any] = field(default_factory=dict)  # label -> what that resource planned for this step
    buffers: dict[str, Tensor] = field(default_factory=dict)
    hosts: dict[str, np.ndarray] = field(default_factory=dict)  # host memory of buffers

    def chunks(self, port: str) -> list[Chunk]:
        """The chunk that each row took from a port which every row of the batch takes; [] for a batch of sinks."""
        return [chunk for chunk in self.taken.get(port, ()) if chunk is not None]

    def buffer(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A static input of this bucket, made once and reused at every step with it; old contents stay."""
        held = self.buffers.get(name)
        if held is None or held.shape != shape:
            held = self.buffers[name] = torch.zeros(shape, dtype=dtype, device=self.slots.device)
            self.hosts.pop(name, None)
        return held

    def host(self, name: str) -> np.ndarray:
        """Host memory for a buffer's values: its own or, on another device, pinned memory to copy from."""
        held = self.hosts.get(name)
        if held is None:
            tensor = self.buffers[name]
            if tensor.device.type != "cpu":
                tensor = torch.empty_like(tensor, device="cpu", pin_memory=True)
            held = self.hosts[name] = tensor.numpy()
        return held


@dataclass(slots=True)
class Settled:
    """Columns over the batch's n rows. `kept`: units that count (None: all)."""

    verdicts: np.ndarray
    emits: Mapping[str, Packed] = field(default_factory=dict)
    kept: np.ndarray | None = None


class Node:
    """A step function over rows: offer -> stage -> launch -> settle. Subclass and override; attributes are its plan.

    An autoregressive loop, a denoise loop and a streaming codec are all nodes; they differ in what they offer.
    """

    name: str
    reads: tuple[str, ...] = ()  # resource labels
    writes: tuple[str, ...] = ()
    buckets: Sequence[tuple[int, int]] = ()  # captured (rows, units), ascending; () = run at the exact size
    compiles: Sequence[str] = ()  # attributes ("net.filter"): pure functions of tensors that `launch` may run compiled
    uniform: bool = False  # rows of a step have equal units, and a bucket is for rows of exactly units / rows each
    budget: float = float("inf")  # most `cost` in one step
    numerics: Mapping[str, Any] = {}  # entered around its steps
    tables: Sequence[str] = ()  # attributes indexed by slot ("rules.count"): a row that is preempted takes them along
    preempt: str = "never"  # "never" | "offload" | "recompute", a prompt that its piece declares as its `prefix`

    def begin(self, row: Row) -> None:
        """The piece took its slot: set `row.state` and the slot's table rows. Host, once a piece."""

    def offer(self, row: Row) -> Offer | None:
        """What the row could do next, or None: nothing until an input stream changes. Host, per row, rare."""
        raise NotImplementedError

    def cost(self, units: np.ndarray) -> float:
        """Cost of rows with these units (summed over lanes): packed (the sum) unless overridden. Monotone."""
        return float(units.sum())

    def stage(self, b: Batch) -> None:
        """Fill static inputs (`b.buffer`), vectorised; nothing that the step before computes.

        Every bucket runs once before readiness with sinks alone: n = 0 and nothing in `ins`.
        """

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        """Device work. No host read, no Python per row, no allocation that is kept; tables are written last.

        Where the node writes no resource, other rows may be launched at the same time on another thread.
        """
        raise NotImplementedError

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        """Verdicts and emissions from `out`, which has reached the host. Host, per batch."""
        raise NotImplementedError

    def save(self, row: Row) -> Any:
        """What the node keeps for a row besides its resources and `row.state`: it loses its slot. Host, when idle."""
        return {name: deepcopy(attrgetter(name)(self)[row.slot]) for name in self.tables}

    def restore(self, row: Row, saved: Any) -> None:
        """Put back what `save` returned, in the slot that the row has now."""
        for name, value in saved.items():
            attrgetter(name)(self)[row.slot] = value


Items = Sequence[int | bytes] | np.ndarray  # one a position: a token id, or the `media_key` of what fills it
Content = Mapping[str, Items]  # by lane


class Resource:
    """State owned by the engine and shared by a model's nodes, held by an *owner*: a request, a piece or a session."""

    capacity: int  # amount that owners can hold together
    unit = ""  # what the amount counts, for the metrics; nothing where it is one a slot
    nbytes = 0  # of device memory
    rollback = True  # a failed step can be undone: its rows may run again
    stride = 1  # a beginning that is adopted has a multiple of this length
    replays = False  # running its tokens again gives the same state
    partial = False  # it can publish a beginning of what an owner holds, and not only all of it

    def need(self, lanes: tuple[str, ...], units: int) -> int:
        """Amount for an owner that writes at most `units` in each lane. Pure; the scheduler adds these up."""
        raise NotImplementedError

    @property
    def free(self) -> int:
        """Amount that owners can still have."""
        raise NotImplementedError

    def worst(self) -> int:
        """The most that one owner can need: with `capacity`, how many owners fit at once."""
        return self.need(MAIN, 1)

    def reserve(self, owner: str, lanes: tuple[str, ...], units: int) -> bool:
        """Take `need(lanes, units)` for the owner, or nothing and False. At admission: a whole walk's, or none."""
        raise NotImplementedError

    def bind(self, slot: int, owner: str) -> None:
        """From now on steps find the owner by this slot. Several slots may be bound to one owner."""
        raise NotImplementedError

    def plan(self, b: Batch, *, write: bool) -> Any:
        """What this step may use. Needs lengths, not values, so it may run one step ahead; fills static indices."""
        raise NotImplementedError

    def commit(self, b: Batch, kept: np.ndarray) -> None:
        """Count the kept units of a step that was planned for writing, roll the rest back."""

    def stored(self, owner: str) -> int:
        """Units that the owner has written, steps in flight included; 0 where nothing depends on them."""
        return 0

    def short(self, slots: np.ndarray, units: np.ndarray) -> np.ndarray:
        """[n] bool: which slots' owners must `reserve` before they write so many more units."""
        return np.zeros(len(slots), bool)

    def save(self, owner: str) -> Any:
        """A copy on the host of all that the owner, which is bound, has; no step of it is in flight."""
        raise NotImplementedError

    def restore(self, owner: str, saved: Any) -> None:
        """Put back what `save` returned, for an owner that has reserved as much and is bound, to any slot."""
        raise NotImplementedError

    def known(self, content: Content) -> Sequence[int] | None:
        """Lengths, ascending, of the beginnings of `content` that are kept; None: any, for only counts depend on it."""
        return ()

    def adopt(self, owner: str, content: Content, length: int) -> None:
        """Let an owner that is bound and has written nothing go on after the first `length` positions, a known one."""

    def publish(self, owner: str, content: Content) -> None:
        """Keep what the owner holds for later owners: committed, it is `content`, or begins with it if `partial`."""

    def release(self, owner: str) -> None:
        """Give everything back. Idempotent; the only way out."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Graph:
    """A model as data. A walk names the nodes a request uses; edges with an end outside it are left out."""

    nodes: Mapping[str, Node]
    edges: Sequence[Edge]
    resources: Mapping[str, Resource]
    walks: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Need:
    """The most a piece will write to one resource: units in each of its lanes.

    `expected` of them are reserved at admission where the pool admits what is expected: the prompt and some more.
    """

    units: int = 1
    lanes: tuple[str, ...] = MAIN
    expected: int | None = None  # None: all of them


@dataclass(frozen=True, slots=True)
class Prefix:
    """What a node's prompt is, so that what an earlier one with the same beginning left behind is used again.

    The engine takes the longest beginning that *all* resources written by the node hold (pages of `PagedKV`, a
    snapshot of `StateSlots`; samplers and positions only count), lets the piece adopt it, skips its items on the
    `take` ports, and sets `Row.reused`. At least one position is left to compute. While the prompt is computed, its
    chunks end at each of `marks`, at its own last whole stride and nowhere new else; there the resources publish it.
    What the node says on the port `grows` goes on from the prompt, and is published with it when the piece ends.

    A prompt whose positions are not items of a stream (`take` is empty) is skipped by the port: offer what comes
    after `row.reused`. It is published when the piece ends, of resources that can share it then (not `StateSlots`).
    """

    node: str
    content: Content  # all that a position's state depends on: token ids, and media by `serving.resources.media_key`
    take: tuple[str, ...] = ()  # input ports that hold the prompt, whole, an item a position
    grows: str | None = None  # output port whose items are token ids, one a position, in every lane
    marks: tuple[int, ...] = ()  # ends of messages, in positions: taken down to a multiple of every `stride`


@dataclass(slots=True)
class Piece:
    """An ordered part of a request. Outputs reach the client in piece order whatever `in_flight` is."""

    walk: str
    inputs: Mapping[str, Packed]  # "node.port" -> its whole stream
    knobs: Any
    needs: Mapping[str, Need] = field(default_factory=dict)  # label -> reserved at admission
    result: str | None = None  # "node.port" whose items the generator gets back
    share: tuple[str, ...] = ()  # labels owned by the request, kept over its pieces
    keep: tuple[str, ...] = ()  # labels owned by the session
    session: str | None = None
    prefix: Prefix | None = None


@dataclass(frozen=True, slots=True)
class Emit:
    """Yielded by `pieces`: items for the client that no node made, in order with the pieces around them."""

    port: str
    items: Packed


# What is sent back: the result of a piece that names one, a tuple of them for a tuple of pieces, else None.
Steps = Generator[Piece | tuple[Piece, ...] | Emit, Any, None]


@dataclass(frozen=True, slots=True)
class Audio:
    """Decoded sound: float32 samples in [-1, 1], shape [channels, T], at `rate` Hz."""

    samples: np.ndarray
    rate: int

    @property
    def seconds(self) -> float:
        return self.samples.shape[-1] / self.rate

    def read(self, start: int, stop: int) -> np.ndarray:
        """Samples [channels, start:stop] in memory; the whole of a long recording may lie in a file."""
        return self.samples[:, start:stop]


@dataclass(frozen=True, slots=True)
class Video:
    """Decoded pictures: uint8 frames, shape [T, H, W, 3], at `rate` frames a second."""

    frames: np.ndarray
    rate: float


@dataclass(frozen=True, slots=True)
class Task:
    """What the API hands a port: decoded media and text by name, and the port's validated knobs."""

    kind: str  # "transcribe", "speak", "chat", "image", "video", "generate"
    inputs: Mapping[str, Any]
    knobs: Any
    seed: int = 0  # the engine sets the request's seed before `prepare`
    live: bool = False  # and this too: the client plays the output as it is made


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a transcript with its times in seconds."""

    start: float
    end: float
    word: str
    probability: float


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a transcript; times in seconds from the start of the audio."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0
    words: tuple[Word, ...] | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token with the natural logarithm of its probability; `top`: the likeliest ones in its place."""

    id: int
    data: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that a model calls; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """What a chat answer grew by: any of these, in this order."""

    reasoning: str = ""
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    token_ids: tuple[int, ...] = ()


# What `present` returns for each client port, by task kind. Every kind may also emit "info": a mapping of facts
# about the whole answer (language, duration, token counts), merged in order.
PORTS: Mapping[str, Mapping[str, Any]] = {
    "transcribe": {"segments": list[Segment]},
    "speak": {"audio": np.ndarray},  # float32 [T] at the card's sample rate
    "chat": {"text": Delta},
    "image": {"image": np.ndarray},  # uint8 [H, W, 3]
    "video": {"video": np.ndarray},  # uint8 [T, H, W, 3]
    "generate": {},  # whatever the model's client ports are
}


class Model(Protocol):
    """A port, loaded. `prepare`, `pieces` and `present` run in host pools, never on the engine thread."""

    @property
    def graph(self) -> Graph: ...

    @property
    def modules(self) -> Mapping[str, torch.nn.Module]:
        """What the numerics mode prepares and probes."""

    def prepare(self, task: Task) -> Any:
        """Tokenise, featurise, check: the job. Raises `serving.errors.BadRequest`."""

    def in_flight(self, job: Any) -> int:
        """How many of the job's pieces may run at once."""

    def pieces(self, job: Any) -> Steps:
        """The job's parts in order; one yield for most models. A yield returns the piece's `result`, or None.

        A tuple of pieces runs together and returns the tuple of their results once all are there. Each of them names
        a `result`, and there are at most `in_flight(job)` of them.
        """

    def present(self, port: str, items: Packed) -> Any:
        """A client port's items as the API wants them: PCM, pixels, text; never containers.

        On the client's event loop, or in a host pool where the items are many bytes.
        """


@dataclass(frozen=True, slots=True)
class Options:
    """What a deployment asks of a port."""

    device: str = "cpu"
    profile: str = "exact"  # "exact" | "default" | "fast"
    numerics: str = "fast"  # "invariant" | "fast"
    capture: str = "eager"  # "eager" | "static" | "compiled"
    allow_eager: bool = False  # what cannot be captured runs without, instead of ending start-up
    rows: int = 8  # max_concurrent_requests: sizes tables and pools
    weights: str | None = None  # a path instead of the registry's source
    resources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    admission: Mapping[str, str] = field(default_factory=dict)  # label -> "worst_case" (where absent) | "expected"
    model: Mapping[str, Any] = field(default_factory=dict)  # the port's own constructor options


@dataclass(frozen=True, slots=True)
class Card:
    """What is said of a key before it is loaded: `toolkit models`, `/v1/models`, the tables in the docs."""

    key: str
    family: str
    title: str
    tasks: Mapping[str, type]  # task kind -> its knobs (a pydantic model)
    licence: str
    source: str  # "package name==version", "hub owner/name@revision", "recipe"
    experimental: bool = True
    sample_rate: int | None = None
    languages: tuple[str, ...] = ()


@dataclass(slots=True)
class LoadedModel:
    """A key, ready for the engine: `models.registry.load(key, options)` makes it, `serving.api.build_app` takes it."""

    card: Card
    options: Options
    model: Model
    close: Callable[[], None] = lambda: None
