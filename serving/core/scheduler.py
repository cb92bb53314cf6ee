"""What to run next: `plan(groups, now, rules)` is pure, and costs O(groups + batch), never O(queued)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from serving.core.request import Request, Seat
from serving.core.runtime import Group


@dataclass(frozen=True, slots=True)
class Rules:
    """How the scheduler trades latency against batch size."""

    fairness_steps: int = 8  # most plans that may pass over a group
    margin: float = 0.005  # seconds of slack that are never spent waiting
    depth: int = 2  # steps of one row, and of one node, in flight
    target: float = 0.2  # seconds in which an output that is not played in time is due

    def __post_init__(self) -> None:
        if self.depth not in (1, 2):
            raise ValueError(f"depth is 1 or 2 (there are two buffer sets), got {self.depth}")


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: these seats, each with this many units."""

    group: Group
    seats: list[Seat]
    units: list[int]


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing now: more rows may join by then."""

    until: float


def plan(groups: Iterable[Group], now: float, rules: Rules) -> Plan | Hold | None:
    """The group with the least slack, or one that was passed over too often; `Hold` while live rows may gather.

    Slack is the head seat's due time, less now and the estimated time from its node to the client.
    """
    best: Group | None = None
    least = float("inf")
    hold = float("inf")
    for group in groups:
        slack = due(group.seats[0].piece.request, now, rules) - now - group.node.ahead
        if group.passed >= rules.fairness_steps:
            slack = -float("inf")
        elif _gathers(group) and slack > rules.margin:
            hold = min(hold, now + slack - rules.margin)
            continue
        if slack < least:
            best, least = group, slack
    if best is None:
        return Hold(hold) if hold < float("inf") else None
    cohort = best.node.cohort
    if cohort is not None and cohort.holds(best):
        return cohort.plan
    seats, units = choose(best)
    return Plan(best, seats, units) if seats else None


def due(request: Request, now: float, rules: Rules) -> float:
    """When the request's next output is needed: by its playing clock, by its age before the first, else soon.

    A caller who speaks plays `target` seconds behind; one who listens plays from the first output on, and one who has
    heard all waits as long as one who has heard nothing.
    """
    if request.first_output is None or (request.live and request.spoken):
        return request.arrived + rules.target + request.played
    return request.playhead if request.live else now + rules.target


def _gathers(group: Group) -> bool:
    """A clocked group that not all live rows of its node have joined yet."""
    seat = group.seats[0]
    return seat.piece.request.clocked and len(group.seats) < group.node.live


def choose(group: Group) -> tuple[list[Seat], list[int]]:
    """The longest prefix of the queue that fits the node's rows, units and budget; its last row may be split."""
    node = group.node
    seats = [seat for seat in islice(group.seats, node.most_rows) if not seat.done]
    offers = [seat.offer for seat in seats if seat.offer is not None]
    units = [offer.units for offer in offers]
    spans = [offer.units * len(offer.lanes) for offer in offers]
    if node.packed:
        room = min(node.node.budget, node.most_units or float("inf"))
        if sum(spans) <= room:
            return seats, units
    fits = _prefix(group, spans)
    if fits == len(seats):
        return seats, units
    split = _split(group, spans[:fits], seats[fits])
    if split:
        return seats[: fits + 1], [*units[:fits], split]
    if fits == 0:  # alone, whatever it costs: admission has checked that it can run
        return seats[:1], units[:1]
    return seats[:fits], units[:fits]


def _fits(group: Group, spans: list[int]) -> bool:
    node = group.node
    array = np.array(spans)
    within = node.most_units is None or int(array.sum()) <= node.most_units
    return within and node.node.cost(array) <= node.node.budget


def _prefix(group: Group, spans: list[int]) -> int:
    """Most rows from the front that fit: binary search, since cost is monotone."""
    low, high = 0, len(spans)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _fits(group, spans[:middle]) else (low, middle - 1)
    return low


def _split(group: Group, spans: list[int], seat: Seat) -> int:
    """Most units of the next row that still fit, or 0 when fewer than its least do."""
    offer = seat.offer
    assert offer is not None
    if offer.least == offer.units:
        return 0
    low, high = 0, offer.units
    while low < high:
        middle = (low + high + 1) // 2
        fits = _fits(group, [*spans, middle * len(offer.lanes)])
        low, high = (middle, high) if fits else (low, middle - 1)
    return low if low >= offer.least else 0
