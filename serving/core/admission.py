"""Pieces wait here for a slot and for everything their walk needs; and here it all comes back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from serving.core.contract import Need, Piece
from serving.core.request import PieceRun, Request
from serving.core.runtime import ModelRun
from serving.errors import BadRequest, Busy


@dataclass(slots=True)
class Session:
    """Resources kept between the requests of one session."""

    owned: set[tuple[str, str]]
    used: float
    busy: str | None = None  # the request that holds it


def labels(piece: PieceRun) -> list[str]:
    """Every resource that the piece's walk touches, in a fixed order."""
    nodes = (piece.request.model.nodes[name].node for name in piece.wiring.nodes)
    return list(dict.fromkeys(chain.from_iterable((*node.reads, *node.writes) for node in nodes)))


def owner(piece: PieceRun, label: str) -> str:
    """Who holds the label for this piece: its session, its request or, with neither, the piece itself."""
    if label in piece.spec.keep and piece.request.session is not None:
        return f"session/{piece.request.session}"
    return piece.request.id if label in piece.spec.share else f"{piece.request.id}/{piece.index}"


def fits(piece: PieceRun) -> None:
    """Refuse a piece that could never run: more than a pool holds when it is empty."""
    for label, resource in piece.request.model.graph.resources.items():
        need = piece.spec.needs.get(label)
        if need is not None and resource.need(need.lanes, need.units) > resource.capacity:
            raise BadRequest(
                f"The request needs {resource.need(need.lanes, need.units)} of {label}, which holds "
                f"{resource.capacity}.",
                code="over_capacity",
            )


def admit(piece: PieceRun) -> bool:
    """Take a slot and reserve the whole walk, or take nothing. Idle sessions make room first."""
    model = piece.request.model
    if not model.free:
        return False
    while not _reserve(piece):
        if not evict(model):
            return False
    piece.slot = model.free.pop()
    for label in labels(piece):
        model.graph.resources[label].bind(piece.slot, owner(piece, label))
    return True


def _reserve(piece: PieceRun) -> bool:
    request, resources = piece.request, piece.request.model.graph.resources
    new: list[tuple[str, str]] = []
    for label in labels(piece):
        held = (label, owner(piece, label))
        if held in _held(request, piece.spec, label):
            continue
        need = piece.spec.needs.get(label, Need())
        if not resources[label].reserve(held[1], need.lanes, _units(piece, label, need)):
            for name, taken in new:
                resources[name].release(taken)
            return False
        new.append(held)
    for label, taken in new:
        _book(piece, label).add((label, taken))
    return True


def _units(piece: PieceRun, label: str, need: Need) -> int:
    """What to reserve at first; a piece that comes back has room for half of what is left."""
    if piece.request.model.loaded.options.admission.get(label) != "expected":
        return need.units
    if piece.parked is None:
        return need.units if need.expected is None else need.expected
    stored = piece.parked.stored.get(label, 0)
    return stored + max(0, (need.units - stored + 1) // 2)


def _held(request: Request, spec: Piece, label: str) -> set[tuple[str, str]]:
    if label in spec.keep and request.session is not None:
        return request.model.sessions[request.session].owned
    return request.owned


def _book(piece: PieceRun, label: str) -> set[tuple[str, str]]:
    held = owner(piece, label)
    if held == f"{piece.request.id}/{piece.index}":
        return piece.owners
    return _held(piece.request, piece.spec, label)


def release(model: ModelRun, owned: set[tuple[str, str]]) -> None:
    """Give back everything in the book."""
    for label, name in owned:
        model.graph.resources[label].release(name)
    owned.clear()


def open_session(request: Request, now: float) -> None:
    """Claim the request's session; a busy one is a 409."""
    if request.session is None:
        return
    session = request.model.sessions.setdefault(request.session, Session(set(), now))
    if session.busy is not None:
        raise Busy(f'The session "{request.session}" already runs request {session.busy}.', param="session")
    session.busy, session.used = request.id, now


def close_session(request: Request, now: float) -> None:
    """The session is idle again; one that holds nothing is forgotten."""
    name = request.session
    session = request.model.sessions.get(name) if name is not None else None
    if name is not None and session is not None and session.busy == request.id:
        session.busy, session.used = None, now
        if not session.owned:
            del request.model.sessions[name]


def expire(model: ModelRun, now: float, ttl: float) -> None:
    """Drop sessions idle for longer than `ttl` seconds."""
    for name in [n for n, s in model.sessions.items() if s.busy is None and now - s.used > ttl]:
        release(model, model.sessions.pop(name).owned)


def evict(model: ModelRun) -> bool:
    """Drop the idle session that was used longest ago."""
    idle = [(s.used, name) for name, s in model.sessions.items() if s.busy is None]
    if not idle:
        return False
    release(model, model.sessions.pop(min(idle)[1]).owned)
    return True
