"""A loaded model as the engine runs it: nodes with their queues, resources, slots, and the way between nodes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from serving.capture import Runner, runners
from serving.core.contract import Graph, LoadedModel, Node, Resource
from serving.core.graph import CLIENT, Wiring, check, split, wirings
from serving.core.request import PieceRun, Reuse, Seat
from serving.errors import SetupError, nearest

if TYPE_CHECKING:
    from serving.core.handoff import Handle


class Group:
    """Seats of one node whose offers share a key: they may share a step."""

    __slots__ = ("key", "node", "passed", "seats")

    def __init__(self, node: NodeRun, key: Hashable) -> None:
        self.node = node
        self.key = key
        self.seats: deque[Seat] = deque()
        self.passed = 0  # plans that chose another group since this one ran


@dataclass(slots=True)
class Cohort:
    """Seats that are a whole queue and whose offers repeat: until one joins or leaves, their next step is this one.

    They keep their places in the queue, and what a step works out of them is kept here.
    """

    plan: Any
    version: int
    columns: Any = None  # rows, slots, units, lanes and tokens of the batch
    express: dict[str, Express | None] = field(default_factory=dict)  # by port

    def holds(self, group: Group) -> bool:
        """Whether the group is still what it was."""
        return self.plan.group is group and self.version == group.node.version


@dataclass(frozen=True, slots=True)
class Express:
    """The clients, on one event loop, who are the only readers of a cohort's items, one a row."""

    loop: asyncio.AbstractEventLoop
    port: str  # as the clients know it
    handles: list[Handle]


def estimate(before: float, seconds: float) -> float:
    """A decaying maximum: too short an estimate costs a deadline, too long a one only a smaller batch."""
    return max(seconds, 0.95 * before)


class NodeRun:
    """A node with what the engine keeps for it."""

    def __init__(self, model: ModelRun, node: Node, runner: Runner) -> None:
        self.model = model
        self.node = node
        self.name = node.name
        self.runner = runner
        graph = model.graph
        uses = [(label, graph.resources[label], False) for label in node.reads]
        self.uses: list[tuple[str, Resource, bool]] = uses + [
            (label, graph.resources[label], True) for label in node.writes
        ]
        self.touches = frozenset((*node.reads, *node.writes))
        self.changes = frozenset(node.writes)
        self.elastic = [(label, graph.resources[label]) for label in node.writes if model.overbooks(label)]
        self.rollback = all(graph.resources[label].rollback for label in node.writes)
        self.limited = any(edge.limit is not None for edge in graph.edges if split(edge.source)[0] == self.name)
        self.device_ports = {
            split(edge.source)[1] for edge in graph.edges if edge.device and split(edge.source)[0] == self.name
        }
        self.packed = type(node).cost is Node.cost
        self.most_rows = node.buckets[-1][0] if node.buckets else model.rows
        self.most_units = node.buckets[-1][1] if node.buckets else None
        self.groups: dict[Hashable, Group] = {}
        self.live = 0  # seats that have begun and are not done
        self.seconds = 0.0  # what a step may take
        self.ahead = 0.0  # estimated time from this node to the client
        self.steps = 0
        self.version = 0  # counts what changes of the queue and of those who stand in it
        self.cohort: Cohort | None = None  # those who step together now
        self.inflight: deque[Any] = deque()  # steps launched and not settled, oldest first

    def enqueue(self, seat: Seat) -> None:
        """The seat's offer may be planned."""
        offer = seat.offer
        assert offer is not None
        key = ("alone", id(seat)) if seat.solo else offer.key
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(self, key)
        group.seats.append(seat)
        seat.queued = True
        self.version += 1

    def enqueue_all(self, key: Hashable, seats: list[Seat]) -> None:
        """The same for seats that share a key."""
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = Group(self, key)
        group.seats.extend(seats)
        for seat in seats:
            seat.queued = True
        self.version += 1

    def fresh(self) -> list[Group]:
        """The groups that have a seat to run; seats that ended while they waited are dropped."""
        for group in list(self.groups.values()):
            while group.seats and group.seats[0].done:
                group.seats.popleft().queued = False
            if not group.seats:
                del self.groups[group.key]
        return list(self.groups.values())

    def dequeue(self, group: Group, chosen: list[Seat]) -> None:
        """Take the chosen seats, which stand in order, out of their queue."""
        self.version += 1
        left, queue = len(chosen), group.seats
        passed: list[Seat] = []
        position = 0
        while position < left:
            seat = queue.popleft()
            if seat is chosen[position]:
                seat.queued = False
                position += 1
            elif seat.done:
                seat.queued = False
            else:
                passed.append(seat)
        queue.extendleft(reversed(passed))
        if not queue:
            del self.groups[group.key]

    def withdraw(self, seat: Seat) -> None:
        """Take one seat out of its queue."""
        self.version += 1
        for group in list(self.groups.values()):
            if seat in group.seats:
                group.seats.remove(seat)
                seat.queued = False
            if not group.seats:
                del self.groups[group.key]

    def apart(self, step: Any) -> bool:
        """Whether a step of this node may run beside the one in flight: neither writes what is the other's.

        Steps of one node have different rows, unless theirs repeat.
        """
        other: NodeRun = step.node
        if other is self:
            return not self.changes and not step.repeats
        return other.model is not self.model or not (self.changes & other.touches or other.changes & self.touches)

    def left(self, seat: Seat) -> None:
        """The seat has nothing more to do here."""
        seat.done = True
        self.live -= 1
        self.version += 1

    def took(self, seconds: float) -> None:
        """A step ran for so long."""
        self.steps += 1
        self.seconds = estimate(self.seconds, seconds)


class ModelRun:
    """A key being served: its graph, wiring, slots and the pieces that wait for them."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.key = loaded.card.key
        self.graph: Graph = loaded.model.graph
        check(self.graph)
        self.rows = loaded.options.rows
        self.wirings: dict[str, Wiring] = wirings(self.graph)
        found = runners(self.key, self.graph.nodes, loaded.options)
        self.nodes = {name: NodeRun(self, self.graph.nodes[name], runner) for name, runner in found.items()}
        self._check_admission()
        self._check_pools()
        self.paced = any(edge.limit is not None and split(edge.target)[0] == CLIENT for edge in self.graph.edges)
        self.free: list[int] = list(range(self.rows, 0, -1))
        self.waiting: deque[PieceRun] = deque()
        self.sessions: dict[str, Any] = {}
        self.reuse = Reuse()
        self._paths = [(node, [self.nodes[step] for step in self._path(name)]) for name, node in self.nodes.items()]

    def overbooks(self, label: str) -> bool:
        """The pool admits what it expects to be used, and rows may have to leave."""
        return self.loaded.options.admission.get(label, "worst_case") == "expected"

    def _check_admission(self) -> None:
        """Refuse to overbook a pool whose rows cannot leave."""
        for label in self.loaded.options.admission:
            if label not in self.graph.resources:
                raise SetupError(
                    f'{self.key} has no pool "{label}".{nearest(label, self.graph.resources)}', param="admission"
                )
        for walk in filter(self._overbooked, self.graph.walks.values()):
            fixed = [name for name in walk if self.graph.nodes[name].preempt == "never"]
            if fixed:
                raise SetupError(
                    f"{self.key}: {', '.join(fixed)} cannot be preempted, so no pool of the walk "
                    f"{' -> '.join(walk)} admits what is expected.",
                    param="admission",
                )

    def _overbooked(self, walk: tuple[str, ...]) -> bool:
        return any(self.nodes[name].elastic for name in walk)

    def _check_pools(self) -> None:
        """Refuse a cap on concurrent requests that a pool cannot hold."""
        for label, resource in self.graph.resources.items():
            worst = resource.worst()
            if worst * (1 if self.overbooks(label) else self.rows) > resource.capacity:
                raise SetupError(
                    f"{self.key}: {label} holds {resource.capacity}, and a request may need {worst}: "
                    f"max_concurrent_requests {self.rows} does not fit; at most {resource.capacity // worst} do.",
                    param=f"resources.{label}",
                )

    def estimate(self) -> None:
        """Refresh each node's time to the client: what the steps on the way may take."""
        for node, path in self._paths:
            node.ahead = sum(step.seconds for step in path)

    @property
    def sharing(self) -> bool:
        """Its steps may have fewer threads than there are: elsewhere that changes bits, or is a device's affair."""
        return self.loaded.options.device == "cpu" and self.loaded.options.numerics == "fast"

    @property
    def parallel(self) -> bool:
        """It has a node whose steps may run at once."""
        return not all(node.changes for node in self.nodes.values())

    def _path(self, name: str, seen: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The nodes from this one to the client, along the longest way that visits none twice."""
        ends = {split(edge.target)[0] for edge in self.graph.edges if split(edge.source)[0] == name}
        after = [self._path(end, (*seen, name)) for end in ends - {CLIENT, name, *seen}]
        return (name, *max(after, key=len, default=()))


def useful(models: Collection[ModelRun], cores: int) -> int:
    """How many lanes these models can use on so many cores."""
    if not all(model.sharing for model in models):
        return 1
    return cores if any(model.parallel for model in models) else min(cores, len(models))
