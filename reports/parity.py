"""A parity report as a matrix: a line a key, a column a rung, and how near each came to its bound."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import get_args

from pydantic import ValidationError

from parity.harness.schema import STATES, Report, Row, Rung
from serving.errors import SetupError

RUNGS: tuple[str, ...] = get_args(Rung)
WORST = ("fail", "portable", "pass")


@dataclass(frozen=True, slots=True)
class Cell:
    """The comparisons of a key on a rung. `used`: the most that any took of its bound, 1 = all of it."""

    state: str  # the worst
    passed: int
    total: int
    used: float | None


@dataclass(frozen=True, slots=True)
class Line:
    """A key."""

    key: str
    cells: Mapping[str, Cell]
    tests: Mapping[str, int]  # state -> how many
    controls: int = 0  # planted faults that its tests caught


def newest(paths: Sequence[Path]) -> Report | None:
    """The newest of the reports, if there are any; `SetupError` names a file that is none."""
    found = []
    for path in paths:
        try:
            found.append(Report.read(path))
        except ValidationError as error:
            raise SetupError(f"{path} is no parity.json: {error}") from error
    return max(found, key=lambda report: report.created, default=None)


def matrix(report: Report) -> list[Line]:
    """Keys in order. Tests count for every key that they name.

    A comparison that failed in a test that passed is a planted fault that was caught: no finding about the port.
    """
    passed = {test.id for test in report.tests if test.state == "pass"}
    rows: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in report.rows:
        if row.state != "fail" or row.test not in passed:
            rows[row.key][row.rung].append(row)
    tests: dict[str, Counter[str]] = defaultdict(Counter)
    controls: Counter[str] = Counter()
    for test in report.tests:
        for key in test.keys:
            tests[key][test.state] += 1
            controls[key] += test.controls
    return [
        Line(
            key,
            {rung: _cell(rows[key][rung]) for rung in RUNGS if rows[key][rung]},
            {state: tests[key][state] for state in STATES if tests[key][state]},
            controls[key],
        )
        for key in sorted({*rows, *tests})
    ]


def _cell(rows: Sequence[Row]) -> Cell:
    states = [row.state for row in rows]
    used = [share for row in rows if (share := _used(row)) is not None]
    worst = min(states, key=WORST.index)
    return Cell(worst, sum(state != "fail" for state in states), len(rows), max(used, default=None))


def _used(row: Row) -> float | None:
    """Share of the bound that the distance takes; none for a bound of exactly equal, or of no number."""
    if row.bound is None or not isfinite(row.observed) or not isfinite(row.bound):
        return None
    part, whole = (row.observed, row.bound) if row.better == "lower" else (row.bound, row.observed)
    return part / whole if whole else None
