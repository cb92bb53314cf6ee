"""From a settled step to whoever waits for its items: other seats, generators, clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from serving.core.buffer import StreamBuffer, concat, cut
from serving.core.contract import Edge, Emit, Packed, Row
from serving.core.graph import CLIENT, split
from serving.core.handoff import Handle, Outbox
from serving.core.request import Outlet, PieceRun, Request, Seat
from serving.core.runtime import Cohort, Express
from serving.core.streams import Whole


class Router:
    """Moves items along edges and keeps each request's outputs in piece order."""

    def __init__(self, outbox: Outbox, clock: Callable[[], float]) -> None:
        self._outbox = outbox
        self._clock = clock
        self.woken: list[Seat] = []  # seats whose offer must be asked anew
        self.freed: list[Seat] = []  # seats that had waited for room downstream

    def seat(self, piece: PieceRun) -> None:
        """Give a piece that was admitted its seats, join them by its walk's edges, feed its inputs."""
        request, wiring = piece.request, piece.wiring
        for name in wiring.nodes:
            row = Row(piece.slot, request.seed, piece.spec.knobs)
            piece.seats[name] = Seat(request.model.nodes[name], piece, row)
        for name, ports in wiring.outputs.items():
            for port, edges in ports.items():
                piece.seats[name].outputs[port] = [self._outlet(piece, name, edge) for edge in edges]
        for name, edge in wiring.client_inputs.items():
            target, port = split(edge.target)
            piece.seats[target].inputs[port] = piece.client[name]
        for target, items in piece.spec.inputs.items():
            buffer = self._buffer(piece, target)
            buffer.write(items.values, int(items.lengths.sum()))
            buffer.end()
        if piece.spec.result is not None:
            name, port = split(piece.spec.result)
            piece.seats[name].collect = port
        piece.open = len(piece.seats)
        for seat in piece.seats.values():
            seat.node.live += 1
            seat.node.node.begin(seat.row)
            self.woken.append(seat)

    def _outlet(self, piece: PieceRun, name: str, edge: Edge) -> Outlet:
        target, port = split(edge.target)
        if target == CLIENT:
            return Outlet(port, piece.request, piece.index, limit=edge.limit, rate=edge.rate)
        buffer = StreamBuffer(edge)
        buffer.producer = piece.seats[name]
        piece.seats[target].inputs[port] = buffer
        return Outlet(port, piece.request, piece.index, piece.seats[target], buffer, edge.limit)

    def _buffer(self, piece: PieceRun, target: str) -> StreamBuffer:
        """The stream a piece's input goes to; one with no edge of its own is given whole."""
        name, port = split(target)
        inputs = piece.seats[name].inputs
        if port not in inputs:
            inputs[port] = StreamBuffer(Edge(f"{CLIENT}.{port}", target, Whole()))
        return inputs[port]

    def emit(self, seats: list[Seat], port: str, items: Packed, void: list[bool]) -> None:
        """Route one port of a settled step."""
        values, start = items.values, 0
        plain = not isinstance(values, dict)
        for seat, count, dropped in zip(seats, items.lengths.tolist(), void, strict=True):
            stop = start + count
            if count and not dropped:
                own = values[start:stop] if plain else cut(values, start, stop)
                if seat.collect == port:
                    seat.piece.result.append(own)
                    seat.piece.lengths += count
                for outlet in seat.outputs.get(port, ()):
                    if outlet.buffer is None:
                        self.deliver(outlet, own, count)
                    else:
                        outlet.buffer.write(own, count)
                        self.woken.append(outlet.seat)  # type: ignore[arg-type]
            start = stop

    def emit_steady(self, cohort: Cohort, seats: list[Seat], port: str, items: Packed) -> None:
        """Route one port of a step of a cohort: at once for all its clients, where each has but one reader."""
        express = cohort.express.get(port)
        if express is None:
            self.emit(seats, port, items, [False] * len(seats))
            cohort.express[port] = _express(seats, port)
        else:
            self._outbox.share(express.loop, express.handles, express.port, items)

    def finish(self, seat: Seat) -> None:
        """The seat's row is done: its streams end."""
        seat.node.left(seat)
        seat.piece.open -= 1
        for outlets in seat.outputs.values():
            for outlet in outlets:
                if outlet.buffer is not None and not outlet.buffer.ended:
                    outlet.buffer.end()
                    self.woken.append(outlet.seat)  # type: ignore[arg-type]

    def drained(self, buffer: StreamBuffer) -> None:
        """A consumer has taken items for good: there may be room for the producer."""
        buffer.drop()
        producer = buffer.producer
        if producer is not None and producer.blocked and not buffer.full():
            self.freed.append(producer)

    def deliver(self, outlet: Outlet, values: Any, count: int) -> None:
        """Items for the client, now or when the pieces before them are complete."""
        request = outlet.request
        if request.closed:
            return
        if request.first_output is None:
            request.first_output = request.playhead = self._clock()
        if outlet.rate:
            request.played += count / outlet.rate
            request.playhead = max(request.playhead, self._clock()) + count / outlet.rate
        event = (outlet.port, values, count)
        if outlet.index != request.head:
            request.held.setdefault(outlet.index, []).append(event)
            return
        request.backlog += count * request.model.paced
        if request.events:
            request.events.append(event)
        else:
            self._outbox.add(request, event)

    def emitted(self, request: Request, index: int, emit: Emit) -> None:
        """Items that a generator made, which are a part of their own."""
        self.deliver(Outlet(emit.port, request, index), emit.items.values, int(emit.items.lengths.sum()))
        self.completed(request, index)

    def completed(self, request: Request, index: int) -> None:
        """Part `index` has no more output: later ones may follow."""
        request.complete.add(index)
        while request.head in request.complete:
            request.complete.discard(request.head)
            request.head += 1
            for event in request.held.pop(request.head, ()):
                request.backlog += event[2] * request.model.paced
                self._outbox.add(request, event)
            if request.head in request.running:
                self.freed += [seat for seat in request.running[request.head].seats.values() if seat.blocked]


def _express(seats: list[Seat], port: str) -> Express | None:
    """Whose clients may be served together from now on: each is the only reader, at the head, and unhurried."""
    handles: list[Handle] = []
    ends: set[tuple[asyncio.AbstractEventLoop, str]] = set()
    for seat in seats:
        outlets, request = seat.outputs.get(port, ()), seat.piece.request
        if len(outlets) != 1 or seat.collect == port or request.model.paced or request.first_output is None:
            return None
        (outlet,) = outlets
        if outlet.buffer is not None or outlet.rate or outlet.index != request.head:
            return None
        handles.append(request.handle)
        ends.add((request.handle.loop, outlet.port))
    return Express(*ends.pop(), handles) if len(ends) == 1 else None


def result(piece: PieceRun) -> Packed:
    """The items that the generator waited for."""
    values = concat(piece.result) if piece.result else None
    return Packed(values, np.array([piece.lengths], dtype=np.int64))
