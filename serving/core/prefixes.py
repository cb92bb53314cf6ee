"""Prompts that begin alike: a piece goes on after what an earlier one computed, and leaves its own for later ones."""

from __future__ import annotations

from math import lcm

from serving.core import admission
from serving.core.buffer import concat
from serving.core.contract import Content, Prefix, Resource
from serving.core.request import PieceRun, Seat
from serving.resources.hashing import Hashed

Held = list[tuple[Resource, str]]  # with who holds it


def begin(piece: PieceRun) -> None:
    """A piece has its seats: adopt the longest beginning of its prompt that every resource of the node has kept."""
    prefix = piece.spec.prefix
    held = _held(piece, prefix) if prefix is not None else []
    if prefix is None or not held:
        return
    seat, count = piece.seats[prefix.node], piece.request.model.reuse
    if prefix.grows is not None and seat.collect is None:
        seat.collect = prefix.grows
    length = adopt(held, prefix.content)
    count.asked += _length(prefix.content)
    count.reused += length
    seat.row.reused = length
    for port in prefix.take if length else ():
        seat.inputs[port].skip(length)
    _watch(seat, prefix, held)


def end(piece: PieceRun) -> None:
    """The node of the prompt is done: what it said belongs to the beginning of the next turn."""
    prefix = piece.spec.prefix
    held = _held(piece, prefix) if prefix is not None else []
    if prefix is None or not all(resource.partial for resource, _ in held if resource.replays):
        return  # state that is had whole or not at all may have run ahead of what was said
    grown = content(piece, prefix)
    stored = max(_length(prefix.content), _length(grown) - 1)  # the last one may not be written
    whole: Content = {lane: items[:stored] for lane, items in grown.items()}
    for resource, owner in held:
        if resource.partial:
            resource.publish(owner, whole)


def content(piece: PieceRun, prefix: Prefix) -> Content:
    """The prompt and what its node has said since, where that is token ids."""
    if piece.seats[prefix.node].collect != prefix.grows or not piece.result or isinstance(piece.result[0], dict):
        return prefix.content
    said = [int(token) for token in concat(piece.result)]
    return {lane: Hashed.of(items).followed_by(said) for lane, items in prefix.content.items()}


def adopt(held: Held, content: Content) -> int:
    """Begin with the longest beginning that all of them know; returns its length."""
    known = [lengths for resource, _ in held if (lengths := resource.known(content)) is not None]
    length = max(set(known[0]).intersection(*known[1:]), default=0) if known else 0
    if length:
        for resource, owner in held:
            resource.adopt(owner, content, length)
    return length


def _held(piece: PieceRun, prefix: Prefix) -> Held:
    """What the node writes and the piece itself holds; nothing if a session or the request holds some of it."""
    resources = piece.request.model.graph.resources
    labels = piece.request.model.nodes[prefix.node].node.writes
    owners = [(label, admission.owner(piece, label)) for label in labels]
    if not piece.owners.issuperset(owners):
        return []
    return [(resources[label], owner) for label, owner in owners]


def _length(content: Content) -> int:
    return min((len(items) for items in content.values()), default=0)


def _watch(seat: Seat, prefix: Prefix, held: Held) -> None:
    """Let chunks of the prompt end where its beginning will be published, and publish it there."""
    stride = lcm(*(resource.stride for resource, _ in held))
    whole = _length(prefix.content) - 1  # a later prompt has one position more to compute
    marks = sorted({mark // stride * stride for mark in (*prefix.marks, whole) if 0 < mark <= whole} - {0})

    def reached(position: int) -> None:
        if position in marks and not seat.done:
            content = {lane: items[:position] for lane, items in prefix.content.items()}
            for resource, owner in held:
                resource.publish(owner, content)

    if prefix.take and marks:
        buffer = seat.inputs[prefix.take[0]]
        buffer.marks, buffer.reached = marks, reached
