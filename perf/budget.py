"""A run that must end in time: every point gets a share of what is left, by what it will cost at the target's own pace.

Before a target has been measured its points count like anybody's; afterwards by the seconds that it needs for an
answer. A point that reaches the end of its share keeps the requests that were answered until then. A target that gave
no answer in a share has no more points, and its time goes to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perf.schema import Load, Point

WARMUP = 4  # requests: where time is short, the queue is full after the first answers and that must do
LEAST = 4  # measured requests that a point plans for, however little time there is
SPARE = 0.9  # of a share is planned for: paces vary
ENDING = 0.08  # of the budget is for stopping servers and writing reports

Cell = tuple[str, Load]  # target and load


@dataclass(frozen=True, slots=True)
class Share:
    """What a point may use: `seconds` from its first request on, and the requests that should fit."""

    seconds: float
    requests: int
    warmup: int


@dataclass
class Budget:
    """`cells`: points still to be measured, in order. `verify`: answers of each that are asked for again."""

    ends: float  # of the last point, on the clock that `share` is given
    cells: list[Cell]
    verify: int = 0

    def share(self, now: float, wanted: int, points: Sequence[Point]) -> Share:
        """The share of the first cell left, which is taken off. `wanted`: the requests that it would like."""
        paces = {label: pace_of(points, label) for label, _ in self.cells}
        known = [pace for pace in paces.values() if pace]
        usual = sum(known) / len(known) if known else 1.0
        given_up = {label for label in paces if self._silent(label, points)}
        needs = {label: 0.0 if label in given_up else pace or usual for label, pace in paces.items()}
        costs = [self._requests(load, wanted) * needs[label] for label, load in self.cells]
        label, load = self.cells.pop(0)
        left = max(0.0, self.ends - now)
        if label in given_up:
            return Share(0.0, wanted, self._warmup(load))
        seconds = left * costs[0] / sum(costs)
        pace = paces[label]
        checking = self.verify * (pace or 0.0)
        if pace is None:
            return Share(seconds, wanted, self._warmup(load))
        fits = int(SPARE * (seconds - checking) / pace) - self._requests(load, 0)
        return Share(max(0.0, seconds - checking), min(wanted, max(LEAST, fits)), self._warmup(load))

    @staticmethod
    def _silent(label: str, points: Sequence[Point]) -> bool:
        """A target that has been tried and has given no answer."""
        mine = [p for p in points if p.label == label]
        return bool(mine) and pace_of(mine, label) is None

    def _requests(self, load: Load, wanted: int) -> int:
        """Requests that a server answers for a point: warm-up, those that fill the queue, the measured ones."""
        queue = int(load.level) if load.kind == "closed" else 0
        return self._warmup(load) + queue + wanted

    @staticmethod
    def _warmup(load: Load) -> int:
        return min(WARMUP, int(load.level)) if load.kind == "closed" else WARMUP


def pace_of(points: Sequence[Point], label: str) -> float | None:
    """Seconds that a target needs for an answer, at its best so far, warm-up included; None where it has given none."""
    rates = (_answers(p) / (p.end - p.records[0].sent) for p in points if p.label == label and p.records)
    best = max(rates, default=0.0)
    return 1 / best if best else None


def _answers(point: Point) -> int:
    return sum(r.outcome == "ok" for r in point.records)
