"""Requests from entry to release: pieces are made, admitted, finished; every way out passes through `_close`."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from serving.core import admission, preemption, prefixes
from serving.core.buffer import StreamBuffer
from serving.core.contract import Emit, Packed, Piece
from serving.core.graph import split
from serving.core.handoff import End, cancelled
from serving.core.pressure import Pressure
from serving.core.request import PieceRun, Request, Seat, Yielded, advance
from serving.core.routing import result
from serving.core.scheduler import Plan
from serving.errors import BadRequest, StepFailed, Timeout, TooLarge, ToolkitError, nearest

if TYPE_CHECKING:
    from serving.core.engine import Engine
    from serving.core.runtime import ModelRun

log = logging.getLogger("toolkit.engine")


class Requests:
    """All requests of an engine. Everything but `expect`, `forget`, `known`, `waiting` runs on its thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._all: dict[str, Request] = {}
        self._expected: set[str] = set()
        self._unstarted: dict[str, Request] = {}  # no piece of theirs was ever admitted; as they came
        self._closing: list[PieceRun] = []
        self.pressure = {
            key: Pressure(model, self._all.values, self.fail, engine._clock) for key, model in engine.models.items()
        }

    def __len__(self) -> int:
        return len(self._all) + len(self._expected)

    def expect(self, request_id: str) -> None:
        """A request is being prepared."""
        self._expected.add(request_id)

    def forget(self, request_id: str) -> None:
        self._expected.discard(request_id)

    def known(self, request_id: str) -> bool:
        return request_id in self._all or request_id in self._expected

    def waiting(self) -> int:
        """Requests that are prepared or wait for their first admission."""
        return len(self._expected) + len(self._unstarted)

    def enter(self, request: Request, first: Yielded) -> None:
        """Take a prepared request in. Raises what its caller should see."""
        if first.error is not None:
            raise _public(first.error)
        admission.open_session(request, self._engine._clock())
        self._all[request.id] = request
        self._unstarted[request.id] = request
        try:
            self._take(request, first)
        except ToolkitError:
            self._close(request, None)
            raise

    def _take(self, request: Request, yielded: Yielded) -> None:
        """What the generator yielded: queue a piece, deliver an emission, or note the end."""
        request.advancing = False
        if yielded.error is not None:
            raise _public(yielded.error)
        item = yielded.item
        if item is None:
            request.exhausted = True
            self._maybe_done(request)
            return
        if isinstance(item, Emit):
            request.made += 1
            self._engine._router.emitted(request, request.made - 1, item)
            self._advance(request, None)
            return
        request.together = isinstance(item, tuple)
        specs = item if isinstance(item, tuple) else (item,)
        if request.together:
            _check_together(request, specs)
        self._queue(request, [self._piece(request, spec) for spec in specs])

    def _piece(self, request: Request, spec: Piece) -> PieceRun:
        """The next part of the request. Raises what does not fit."""
        model, index = request.model, request.made
        request.made += 1
        if spec.walk not in model.wirings:
            raise StepFailed(f'{model.key} has no walk "{spec.walk}".{nearest(spec.walk, model.wirings)}')
        wiring = model.wirings[spec.walk]
        piece = PieceRun(request, index, spec, wiring)
        piece.client = {name: StreamBuffer(edge) for name, edge in wiring.client_inputs.items()}
        request.spoken = any(edge.target not in spec.inputs for edge in wiring.client_inputs.values())
        admission.fits(piece)
        request.running[index] = piece
        if spec.result is not None:
            request.awaiting[index] = None
        return piece

    def _queue(self, request: Request, pieces: list[PieceRun]) -> None:
        for piece in pieces:
            if request.started is None:
                _line_up(request.model.waiting, piece)
            else:
                self.pressure[request.model.key].wait(piece)  # it goes before those that have not begun
        self._advance_if_room(request)

    def _advance_if_room(self, request: Request) -> None:
        room = len(request.running) < request.in_flight
        if room and not (request.awaiting or request.exhausted or request.advancing or request.closed):
            self._advance(request, None)

    def _advance(self, request: Request, value: Packed | tuple[Packed, ...] | None) -> None:
        """Run the generator in a host pool; what it yields comes back as a message."""
        request.advancing = True

        def job() -> Callable[[], None]:
            yielded = advance(request, value)
            return lambda: self._advanced(request, yielded)

        self._engine.work(job)

    def _advanced(self, request: Request, yielded: Yielded) -> None:
        if request.closed:
            self._end_generator(request)
            return
        try:
            self._take(request, yielded)
        except ToolkitError as error:
            self.fail(request, error)

    def admit(self, now: float) -> None:
        """Seat waiting pieces in order while slots and pools last."""
        for model in self._engine.models.values():
            if self._starved(model):
                continue
            while model.waiting and admission.admit(model.waiting[0]):
                piece = model.waiting.popleft()
                request = piece.request
                request.holding += 1
                if request.started is None:
                    request.started = now
                    self._unstarted.pop(request.id, None)
                try:
                    self._seat(piece)
                except Exception as error:
                    self.fail(request, _public(error))

    def _starved(self, model: ModelRun) -> bool:
        """Rows that run lack room: nobody new comes before they have some."""
        pressure = self.pressure[model.key]
        if not pressure.starved:
            return False
        self._engine._router.freed += pressure.feed()
        return True

    def _seat(self, piece: PieceRun) -> None:
        if piece.parked is None:
            self._engine._router.seat(piece)
            prefixes.begin(piece)
        else:
            self._engine._router.woken += preemption.resume(piece)

    def fit(self, plan: Plan) -> Plan | None:
        """The plan as far as there is room for its rows."""
        return self.pressure[plan.group.node.model.key].fit(plan)

    def preempt(self, request_id: str) -> int:
        """Let the pieces of a request that can leave the device do so; returns how many."""
        request = self._all.get(request_id)
        pieces = [] if request is None else [one for one in request.running.values() if preemption.may_leave(one)]
        for piece in pieces:
            self.pressure[piece.request.model.key].preempt(piece)
        return len(pieces)

    def finished(self, seat: Seat) -> None:
        """A seat is done: its piece may be, or its generator may go on."""
        piece, request = seat.piece, seat.piece.request
        if piece.spec.prefix is not None and piece.spec.prefix.node == seat.node.name:
            prefixes.end(piece)
        if seat.collect is not None and piece.index in request.awaiting:
            request.awaiting[piece.index] = result(piece)
            self._answer(request)
        if piece.open == 0:
            request.running.pop(piece.index, None)
            self._closing.append(piece)
            self._engine._router.completed(request, piece.index)
            self._advance_if_room(request)
            self._maybe_done(request)

    def _answer(self, request: Request) -> None:
        """Give the generator what it waits for, once all of it is there."""
        found = tuple(one for one in request.awaiting.values() if one is not None)
        if len(found) == len(request.awaiting):
            request.awaiting.clear()
            self._advance(request, found if request.together else found[0])

    def settled(self, piece: PieceRun) -> None:
        """A step that was void for the piece has come back: it may be free now."""
        self._closing.append(piece)

    def reap(self) -> None:
        """Release pieces that are over, and park those that leave, once no step in flight holds them."""
        for pressure in self.pressure.values():
            if pressure.leaving:
                pressure.park()
        if not self._closing:
            return
        waiting, self._closing = self._closing, []
        for piece in waiting:
            over = piece.open == 0 or piece.request.closed
            if over and not piece.busy():  # with a step in flight it comes back here through `settled`
                self._release(piece)

    def _release(self, piece: PieceRun) -> None:
        if piece.slot:
            admission.release(piece.request.model, piece.owners)
            piece.request.model.free.append(piece.slot)
            piece.slot = 0
            piece.request.holding -= 1
            self.pressure[piece.request.model.key].released = True
            self._let_go(piece.request)

    def append(self, request_id: str, name: str, items: Packed | None) -> None:
        """Items of a client stream, or its end (None), for the piece that reads it."""
        request = self._all.get(request_id)
        if request is None:
            raise BadRequest("The request has ended.", code="ended")
        for piece in request.running.values():
            edge = piece.wiring.client_inputs.get(name)
            if edge is None:
                raise BadRequest(f'No input stream "{name}".{nearest(name, piece.wiring.client_inputs)}', param=name)
            buffer = piece.client[name]
            if items is None:
                buffer.end()
            else:
                count = int(items.lengths.sum())
                if edge.limit is not None and buffer.backlog + count > edge.limit:
                    raise TooLarge(f"{name} holds at most {edge.limit} items.", param=name)
                if not buffer.written:
                    request.arrived = self._engine._clock()
                buffer.write(items.values, count)
            if piece.seats:
                self._engine._router.woken.append(piece.seats[split(edge.target)[0]])

    def consumed(self, request_id: str, count: int) -> None:
        """The client took items: whoever waited for it may go on."""
        request = self._all.get(request_id)
        if request is None:
            return
        request.backlog -= count
        for piece in request.running.values():
            self._engine._router.freed += [seat for seat in piece.seats.values() if seat.blocked]

    def cancel(self, request_id: str) -> None:
        request = self._all.get(request_id)
        if request is not None:
            self._close(request, cancelled())

    def fail(self, request: Request, error: ToolkitError) -> None:
        """End a request with an error; others are not touched."""
        if not request.closed:
            self._close(request, End(error))

    def fail_all(self, error: ToolkitError) -> None:
        for request in list(self._all.values()):
            self._close(request, End(error))

    def alarm(self) -> float:
        """When `expire` has something to do next."""
        settings = self._engine.settings
        first = next(iter(self._unstarted.values()), None)
        times = [] if first is None else [first.arrived + settings.queue_timeout]
        idle = [
            session.used + settings.session_ttl
            for model in self._engine.models.values()
            for session in model.sessions.values()
            if session.busy is None
        ]
        return min([*times, *idle], default=float("inf"))

    def expire(self, now: float) -> None:
        """Drop idle sessions and requests that have waited too long."""
        settings = self._engine.settings
        for model in self._engine.models.values():
            if model.sessions:
                admission.expire(model, now, settings.session_ttl)
        while (
            request := next(iter(self._unstarted.values()), None)
        ) and request.arrived + settings.queue_timeout < now:
            self.fail(request, Timeout(f"Waited {settings.queue_timeout:g} s in the queue.", code="queue_timeout"))

    def _maybe_done(self, request: Request) -> None:
        if request.exhausted and not request.running:
            self._close(request, End())

    def _close(self, request: Request, end: End | None) -> None:
        """The one way out: seats stop, waiting pieces leave, everything is released once no step holds it."""
        request.closed = True
        self._all.pop(request.id, None)
        self._unstarted.pop(request.id, None)
        for piece in request.running.values():
            if not piece.slot and piece in request.model.waiting:
                request.model.waiting.remove(piece)
            for seat in piece.seats.values():
                if not seat.done:
                    seat.node.left(seat)
                    seat.node.live += piece.parked is not None  # it was not counted
            self._closing.append(piece)
        if not request.advancing:
            self._end_generator(request)
        if end is not None:
            self._engine._outbox.add(request, end)
        self.reap()
        self._let_go(request)

    def _let_go(self, request: Request) -> None:
        """Release what the request itself owns, once none of its pieces is held by a step."""
        if request.closed and not request.holding:
            admission.release(request.model, request.owned)
            admission.close_session(request, self._engine._clock())

    def _end_generator(self, request: Request) -> None:
        if request.steps is not None:
            request.steps.close()
            request.steps = None


def _line_up(waiting: deque[PieceRun], piece: PieceRun) -> None:
    """Behind all of its priority; in the common case, at the end."""
    ahead = len(waiting)
    while (
        ahead
        and waiting[ahead - 1].request.started is None
        and waiting[ahead - 1].request.priority < piece.request.priority
    ):
        ahead -= 1
    waiting.insert(ahead, piece)


def _check_together(request: Request, specs: tuple[Piece, ...]) -> None:
    """A tuple of pieces is one that the generator may yield."""
    if not 0 < len(specs) <= request.in_flight:
        raise StepFailed(f"{request.model.key} yields {len(specs)} pieces at once; 1 to {request.in_flight} may be.")
    if any(spec.result is None for spec in specs):
        raise StepFailed(f"{request.model.key} yields pieces together of which one names no result.")


def _public(error: BaseException) -> ToolkitError:
    if isinstance(error, ToolkitError):
        return error
    log.error("a port raised", exc_info=error)
    return StepFailed(f"{type(error).__name__}: {error}")
