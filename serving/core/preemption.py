"""A piece that gives up its slot and pools for another one, and goes on later as if nothing had been.

It leaves between two steps, when none holds it, so what it has said stays said. Its state goes to the host; of a node
that says `recompute`, only what its prompt and what followed cannot give again.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from serving.core import admission, prefixes
from serving.core.buffer import StreamBuffer
from serving.core.contract import Content, Edge
from serving.core.request import Parked, PieceRun, Replay, Seat
from serving.core.streams import Available


def may_leave(piece: PieceRun) -> bool:
    """It has a slot, nobody has asked it to leave, and its nodes can let go of all that they write."""
    nodes = [seat.node.node for seat in piece.seats.values() if not seat.done]
    owned = {label for label, _ in piece.owners}
    return (
        bool(piece.slot)
        and not piece.leaving
        and all(node.preempt != "never" and owned.issuperset(node.writes) for node in nodes)
    )


def leave(piece: PieceRun) -> None:
    """No step of the piece begins from now on."""
    piece.leaving = True
    for seat in piece.seats.values():
        if seat.queued:
            seat.node.withdraw(seat)
        seat.blocked = True


def park(piece: PieceRun) -> None:
    """Take the piece, which no step holds, off the device."""
    model, again = piece.request.model, _replayed(piece)
    parked = Parked({}, {}, {})
    for label, owner in sorted(piece.owners):
        resource = model.graph.resources[label]
        parked.stored[label] = resource.stored(owner)
        if label not in again:
            parked.pools[label] = resource.save(owner)
    for seat in piece.seats.values():
        if not seat.done:
            parked.nodes[seat.node.name] = seat.node.node.save(seat.row)
            seat.node.live -= 1
    _interrupt(piece, parked)
    piece.parked, piece.leaving = parked, False
    admission.release(model, piece.owners)
    model.free.append(piece.slot)
    piece.slot = 0
    piece.request.holding -= 1


def resume(piece: PieceRun) -> list[Seat]:
    """Put a piece that was admitted again back on the device; returns the seats to ask."""
    parked, seats = piece.parked, [seat for seat in piece.seats.values() if not seat.done]
    assert parked is not None
    piece.parked = None
    for seat in piece.seats.values():
        seat.row.slot = piece.slot
    _restore(piece, parked, parked.pools)
    for seat in seats:
        seat.node.node.restore(seat.row, parked.nodes[seat.node.name])
        seat.node.live += 1
        seat.blocked, seat.offer = False, None
        if seat.node.node.preempt == "recompute" and not parked.pools.keys() >= set(seat.node.node.writes):
            _replay(piece, seat, parked)
    return seats


def _restore(piece: PieceRun, parked: Parked, labels: Iterable[str]) -> None:
    """Put back what was saved of these pools."""
    for label in labels:
        if label in parked.pools:
            resource = piece.request.model.graph.resources[label]
            resource.restore(admission.owner(piece, label), parked.pools[label])


def _replayed(piece: PieceRun) -> set[str]:
    """Resources that the piece will compute again: all tokens in them are known, as items of one stream."""
    prefix, resources = piece.spec.prefix, piece.request.model.graph.resources
    seat = None if prefix is None else piece.seats[prefix.node]
    if prefix is None or seat is None or seat.done or seat.node.node.preempt != "recompute" or len(prefix.take) != 1:
        return set()
    labels = {label for label in seat.node.node.writes if resources[label].replays}
    stored = max((resources[label].stored(admission.owner(piece, label)) for label in labels), default=0)
    lengths = {len(items) for items in prefixes.content(piece, prefix).values()}
    tokens = not any(isinstance(item, bytes) for item in next(iter(prefix.content.values())))
    tokens = tokens and isinstance(seat.inputs[prefix.take[0]].empty, np.ndarray)
    return labels if tokens and stored and len(lengths) == 1 and min(lengths) >= stored else set()


def _replay(piece: PieceRun, seat: Seat, parked: Parked) -> None:
    """Give the node its prompt and what followed as items that nothing follows at once: it says nothing of them."""
    prefix, resources = piece.spec.prefix, piece.request.model.graph.resources
    assert prefix is not None
    labels = [label for label in seat.node.node.writes if label not in parked.pools]
    stored = max(parked.stored[label] for label in labels)
    content: Content = {lane: items[:stored] for lane, items in prefixes.content(piece, prefix).items()}
    (port,) = prefix.take
    buffer = StreamBuffer(Edge(f"again.{port}", f"{prefix.node}.{port}", Available()))
    original = seat.inputs[port]
    buffer.write(np.asarray(next(iter(content.values())), original.empty.dtype), stored)
    buffer.skip(prefixes.adopt([(resources[label], admission.owner(piece, label)) for label in labels], content))
    buffer.reached = lambda position: _replayed_all(piece) if position == stored else None
    piece.replay = Replay(prefix.node, parked, port, original)
    seat.inputs[port] = buffer


def _replayed_all(piece: PieceRun) -> None:
    """All is computed: what the replay's own steps have counted is forgotten."""
    replay = piece.replay
    if replay is not None:
        seat = piece.seats[replay.node]
        seat.inputs[replay.port] = replay.buffer
        piece.replay = None
        _restore(piece, replay.parked, seat.node.node.writes)
        seat.node.node.restore(seat.row, replay.parked.nodes[replay.node])


def _interrupt(piece: PieceRun, parked: Parked) -> None:
    """A piece that has to leave in the middle of its replay takes along what it came with."""
    replay = piece.replay
    if replay is None:
        return
    seat, before = piece.seats[replay.node], replay.parked
    seat.inputs[replay.port] = replay.buffer
    parked.nodes[replay.node] = before.nodes[replay.node]
    for label in seat.node.node.writes:
        parked.stored[label] = before.stored[label]
        parked.pools.pop(label, None)
        if label in before.pools:
            parked.pools[label] = before.pools[label]
    piece.replay = None
