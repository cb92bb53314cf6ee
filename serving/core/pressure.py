"""A pool that admits what it expects may run dry: who waits then, and who leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from serving.core import admission, preemption
from serving.core.contract import Need, Resource
from serving.core.request import PieceRun, Request, Seat
from serving.core.runtime import ModelRun
from serving.core.scheduler import Plan
from serving.errors import Overloaded, ToolkitError


def rank(piece: PieceRun) -> tuple[float, float, int]:
    """Who goes before whom: higher priority, earlier arrival, earlier part."""
    return -piece.request.priority, piece.request.arrived, piece.index


class Pressure:
    """One model's rows that lack room, and the pieces that leave to make some."""

    def __init__(
        self,
        model: ModelRun,
        requests: Callable[[], Iterable[Request]],
        fail: Callable[[Request, ToolkitError], None],
        clock: Callable[[], float],
    ) -> None:
        self.model = model
        self.leaving: list[PieceRun] = []
        self.starved: list[Seat] = []
        self.released = False  # something has come back since the starved were turned away
        self.preemptions = 0
        self._requests = requests
        self._fail = fail

    def fit(self, plan: Plan) -> Plan | None:
        """The plan without rows for which there is no room now. Costs O(batch), and only where a pool is overbooked."""
        seats, elastic = plan.seats, plan.group.node.elastic
        if not elastic:
            return plan
        slots, units = np.array([seat.row.slot for seat in seats]), np.array(plan.units)
        for label, resource in elastic:
            for row in np.flatnonzero(resource.short(slots, units)).tolist():
                if seats[row].queued and not self._grow(seats[row].piece, label, resource, plan.units[row]):
                    self._starve(seats[row])
        kept = [row for row, seat in enumerate(seats) if seat.queued]
        if len(kept) == len(seats):
            return plan
        return Plan(plan.group, [seats[i] for i in kept], [plan.units[i] for i in kept]) if kept else None

    def _grow(self, piece: PieceRun, label: str, resource: Resource, units: int) -> bool:
        need, owner = piece.spec.needs.get(label, Need()), admission.owner(piece, label)
        if resource.stored(owner) >= need.units:
            return True  # it has all that it may have: this step finds it finished, or fails
        while not resource.reserve(owner, need.lanes, units):
            if not self._relieve(piece, label):
                return False
        return True

    def _relieve(self, piece: PieceRun, label: str) -> bool:
        """Something has been given back: by an idle session, or the running piece that matters least."""
        if any(one.slot for one in self.leaving):
            return False
        if admission.evict(self.model):
            return True
        able = [one for one in self._holders(label) if preemption.may_leave(one)]
        victim = max(able, key=rank, default=None)
        if victim is None or rank(victim) < rank(piece):
            return False
        self.preempt(victim)
        return victim is not piece and not victim.slot

    def preempt(self, piece: PieceRun) -> None:
        """Let a piece leave: now, or when the steps that hold it are back."""
        self.preemptions += 1
        preemption.leave(piece)
        self.leaving.append(piece)
        self.park()

    def park(self) -> None:
        """Take off the device who may go now; they wait for admission again, before whoever has not begun."""
        for piece in self.leaving:
            over = piece.open == 0 or piece.request.closed
            if not over and not piece.busy():
                preemption.park(piece)
                self.wait(piece)
                self.released = True
        self.leaving = [piece for piece in self.leaving if piece.leaving and piece.open and not piece.request.closed]

    def wait(self, piece: PieceRun) -> None:
        """A piece of a request that runs waits for admission in its order, before all that have not begun."""
        waiting = self.model.waiting
        ahead = 0
        while (
            ahead < len(waiting) and waiting[ahead].request.started is not None and rank(waiting[ahead]) < rank(piece)
        ):
            ahead += 1
        waiting.insert(ahead, piece)

    def _holders(self, label: str) -> list[PieceRun]:
        return [piece for piece in self._running() if any(label == name for name, _ in piece.owners)]

    def _running(self) -> list[PieceRun]:
        requests = [request for request in self._requests() if request.model is self.model]
        return [piece for request in requests for piece in request.running.values() if piece.slot]

    def _starve(self, seat: Seat) -> None:
        """The seat waits until something is given back."""
        if seat.piece.leaving or not seat.piece.slot:
            return
        seat.node.withdraw(seat)
        seat.blocked = True
        self.starved.append(seat)
        self._break()

    def _break(self) -> None:
        """If all who hold something wait for more, the least of them fails: nobody else can give any back."""
        nodes, hungry = self.model.nodes.values(), {id(seat.piece): seat.piece for seat in self.starved}
        if self.leaving or self.released or any(node.inflight or node.groups for node in nodes):
            return
        if all(id(piece) in hungry for piece in self._running()):
            least = max(hungry.values(), key=rank)
            self._fail(least.request, Overloaded("The pools are full, and nobody can give anything back."))

    def feed(self) -> list[Seat]:
        """Seats that may try again."""
        if not self.released:
            self._break()
            return []
        self.released = False
        tried, self.starved = self.starved, []
        tried = [seat for seat in tried if not (seat.done or seat.piece.leaving) and seat.piece.slot]
        return sorted(tried, key=lambda seat: rank(seat.piece))
