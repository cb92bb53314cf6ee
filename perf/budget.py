"""A run that must end in time: every point gets a share of what is left, by what it will cost at the target's own pace.

Each point of the first repeat is given what its least requests cost before anyone has more; what is left over goes to
more requests and further repeats. Where there is not enough even for the least, the last points have none. A further
repeat that no longer fits is not made. Before a target has been measured it counts as a slow one; afterwards by the
seconds that it needs for an answer. A point that reaches the end of its share keeps the requests that were answered
until then. A target that gave no answer in a share has no more points, and its time goes to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perf.schema import Load, Point

WARMUP = 2  # requests: where time is short, the queue is full after the first answers and that must do
LEAST = 4  # measured requests that a point plans for, however little time there is
SPARE = 0.9  # of a share is planned for: paces vary
ENDING = 0.08  # of the budget is for stopping servers and writing reports
UNKNOWN = 2.5  # seconds that an answer is taken to need before there has been one


class Cell(NamedTuple):
    """A point that is still to be measured. `wanted`: requests, if there were time."""

    label: str
    load: Load
    wanted: int
    first: bool = True  # of its target and load; others are made if they fit


@dataclass(frozen=True, slots=True)
class Share:
    """What a point may use: `seconds` from its first request on, and the requests that should fit."""

    seconds: float
    requests: int


class Cost(NamedTuple):
    """Seconds: with the least requests, and with all that are wanted."""

    least: float
    full: float


@dataclass
class Budget:
    """`cells`: points still to be measured, in order. `verify`: answers of each that are asked for again."""

    ends: float  # of the last point, on the clock that `share` is given
    cells: list[Cell]
    verify: int = 0
    warmup: int = WARMUP

    def share(self, now: float, points: Sequence[Point]) -> Share | None:
        """The share of the first cell left, which is taken off; None for a repeat that does not fit any more."""
        paces = {cell.label: pace_of(points, cell.label) for cell in self.cells}
        silent = {label for label in paces if self._silent(label, points)}
        costs = [self._cost(cell, 0.0 if cell.label in silent else paces[cell.label] or UNKNOWN) for cell in self.cells]
        firsts = [cell.first for cell in self.cells]
        cell, left = self.cells.pop(0), max(0.0, self.ends - now)
        if cell.label in silent:
            return Share(0.0, cell.wanted) if cell.first else None
        if not cell.first and costs[0].least > left:
            return None
        seconds = _split(left, costs, firsts)
        pace = paces[cell.label] or UNKNOWN
        seconds = max(0.0, seconds - self.verify * pace)
        fits = int(SPARE * seconds / _each(cell.load, pace)) - self._requests(cell.load, 0)
        return Share(seconds, min(cell.wanted, max(LEAST, fits)))

    @staticmethod
    def _silent(label: str, points: Sequence[Point]) -> bool:
        """A target that has been tried and has given no answer."""
        mine = [p for p in points if p.label == label]
        return bool(mine) and pace_of(mine, label) is None

    def _cost(self, cell: Cell, pace: float) -> Cost:
        counts = (self._requests(cell.load, n) for n in (min(LEAST, cell.wanted), cell.wanted))
        least, full = (n * _each(cell.load, pace) / SPARE + self.verify * pace for n in counts)
        return Cost(least, full)

    def _requests(self, load: Load, wanted: int) -> int:
        """Requests that a server answers for a point: warm-up, those that fill the queue, the measured ones."""
        queue = int(load.level) - 1 if load.kind == "closed" else 0
        return self.warmup + queue + wanted


def _each(load: Load, pace: float) -> float:
    """Seconds that a request of a load takes of its point: an open loop also waits until it is due."""
    return pace if load.kind == "closed" or not pace else max(pace, 1 / load.level)


def _split(left: float, costs: Sequence[Cost], firsts: Sequence[bool]) -> float:
    """The seconds of the first of the cells."""
    mine, first = costs[0], firsts[0]
    owed = sum(cost.least for cost, is_first in zip(costs, firsts, strict=True) if is_first)
    if first and owed >= left:
        return min(left, mine.least)
    extra = sum(cost.full - cost.least * is_first for cost, is_first in zip(costs, firsts, strict=True))
    more = (left - owed) * (mine.full - mine.least * first) / extra if extra else 0.0
    return min(mine.full, mine.least + more) if first else min(left, mine.full, max(mine.least, more))


def pace_of(points: Sequence[Point], label: str) -> float | None:
    """Seconds that a target needs for an answer, at its best so far, warm-up included; None where it has given none."""
    rates = (_answers(p) / (p.end - p.records[0].sent) for p in points if p.label == label and p.records)
    best = max(rates, default=0.0)
    return 1 / best if best else None


def _answers(point: Point) -> int:
    return sum(r.outcome == "ok" for r in point.records)
