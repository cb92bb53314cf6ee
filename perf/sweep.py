"""Which loads to try: a sweep to the knee, and a search for the highest rate that still holds its objectives.

Planners are pure: from the points so far to the next load, or None. What they found is read from the points by
`knee` and `highest_rate`, so a report of an old run says the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from perf.arrivals import closed
from perf.metrics import HEADLINE, for_route
from perf.metrics.goodput import Goodput
from perf.metrics.totals import RequestThroughput, SuccessRate
from perf.schema import Load, Point, Record
from serving.errors import BadRequest

TARGET = 95.0  # percent of requests that must be good
GAIN = 1.05  # throughput from one step to the next, below which more load is only more waiting
CLOSE = 1.1  # a search ends when the rates that hold and do not are within this factor
MOST_POINTS = 24

Planner = Callable[[Sequence[Point]], Load | None]


@dataclass(frozen=True, slots=True)
class Step:
    """A point as a sweep sees it."""

    load: Load
    throughput: float
    good: float  # percent


def steps(points: Sequence[Point], route: str, slos: Mapping[str, float], kind: str) -> list[Step]:
    """Points of a kind of load by ascending level; without objectives, a success is good."""
    metrics = for_route(route, slos)
    good, throughput = metrics["goodput"] if slos else SuccessRate(), metrics[HEADLINE[route]]
    chosen = sorted((p for p in points if p.load.kind == kind), key=lambda p: p.load.level)
    return [Step(p.load, throughput.result(p).value or 0.0, good.result(p).value or 0.0) for p in chosen]


def knee(found: Sequence[Step]) -> Step | None:
    """The last step on the way up where requests are good and each step gave 5 % more throughput."""
    best: Step | None = None
    for step in found:
        if step.good < TARGET or (best and step.throughput < GAIN * best.throughput):
            break
        best = step
    return best


def highest_rate(found: Sequence[Step]) -> Step | None:
    """The highest rate that held, with every lower rate that was tried."""
    best: Step | None = None
    for step in found:
        if step.good < TARGET:
            break
        best = step
    return best


@dataclass(frozen=True, slots=True)
class KneeSweep:
    """Doubles the concurrency to the knee and past it, then looks between the knee and the next step."""

    route: str
    slos: Mapping[str, float]
    most: int = 256

    def __call__(self, points: Sequence[Point]) -> Load | None:
        found = steps(points, self.route, self.slos, "closed")
        levels = [int(step.load.level) for step in found]
        if not levels:
            return closed(1)
        best = knee(found)
        if best is None or len(found) >= MOST_POINTS:
            return None
        at = int(best.load.level)
        beyond = [level for level in levels if level > at]
        if not beyond:
            return closed(min(2 * at, self.most)) if at < self.most else None
        between = (at + beyond[0]) // 2
        return closed(between) if between - at >= max(1, at // 4) and between not in levels else None


@dataclass(frozen=True, slots=True)
class RateSearch:
    """The pace of one request at a time, then Poisson rates: doubled or halved to a bracket, then bisected."""

    route: str
    slos: Mapping[str, float]

    def __post_init__(self) -> None:
        if not self.slos:
            raise BadRequest("A search for the highest rate needs an objective, such as ttfa=0.5.", param="slo")

    def __call__(self, points: Sequence[Point]) -> Load | None:
        alone = next((p for p in points if p.load.kind == "closed"), None)
        if alone is None:
            return closed(1)
        found = steps(points, self.route, self.slos, "poisson")
        pace = RequestThroughput().result(alone).value
        if not pace or len(found) >= MOST_POINTS:
            return None
        held = [s.load.level for s in found if s.good >= TARGET]
        broken = [s.load.level for s in found if s.good < TARGET]
        rate = self._next(pace, max(held, default=0.0), min(broken, default=math.inf))
        return Load("poisson", float(f"{rate:.4g}")) if rate else None

    @staticmethod
    def _next(pace: float, low: float, high: float) -> float | None:
        if not low and math.isinf(high):
            return pace
        if math.isinf(high):
            return 2 * low
        if not low:
            return high / 2 if high > pace / 64 else None
        return math.sqrt(low * high) if high / low > CLOSE else None


@dataclass(frozen=True, slots=True)
class OutOfReach:
    """Says when a point cannot reach `TARGET` any more, so that an overloaded server is not waited for."""

    goodput: Goodput
    requests: int

    def __call__(self, records: Sequence[Record], now: float) -> bool:
        """`records`: measured so far. A request that waits longer than a limit has missed it already."""
        missed = sum(not self.goodput.met(r) if r.end is not None else self._late(r, now) for r in records)
        return missed > self.requests * (1 - TARGET / 100)

    def _late(self, record: Record, now: float) -> bool:
        waiting = {"e2e"} if any(c.kind == "content" for c in record.chunks) else {"e2e", "ttfa", "ttft"}
        limits = (limit for metric, limit in self.goodput.slos.items() if metric.name in waiting)
        return any(now - record.sent > limit for limit in limits)
