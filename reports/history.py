"""Figures over runs: series by target, load and metric, and the steps in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import mannwhitneyu

from reports.summary import Report

P_VALUE = 0.002
LEAST = 3  # runs on each side of a step


@dataclass(frozen=True, slots=True)
class Sight:
    """One run's value of a series."""

    started: str
    commit: str
    value: float
    valid: bool


@dataclass(frozen=True, slots=True)
class Change:
    """The level of a series changed with the run that started at `started`: `ratio` is after / before."""

    started: str
    commit: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Series:
    """A metric of one target at one load on one kind of machine, in the order of the runs."""

    model: str
    label: str
    load: str
    metric: str
    title: str
    unit: str
    better: str
    machine: str
    seen: tuple[Sight, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.model}, {self.label} {self.load}: {self.title}"

    @property
    def changes(self) -> list[Change]:
        """Steps among the valid runs."""
        seen = [s for s in self.seen if s.valid]
        values = [s.value for s in seen]
        found = []
        for at, before, after in steps(values):
            found.append(Change(seen[at].started, seen[at].commit, after / before if before else float("nan")))
        return found


def series(reports: Sequence[Report]) -> list[Series]:
    """Throughput and first response of every target and load; runs on other machines are other series."""
    found: dict[Series, list[Sight]] = {}
    for report in sorted(reports, key=lambda r: r.run.started):
        client = report.run.client
        where = f"{client.get('cores')} x {client.get('cpu')}"
        for part, row in ((section, row) for section in report.sections for row in section.rows):
            for name in dict.fromkeys((part.headline, part.first)):
                f = row.figures[name]
                if f.value is not None:
                    model = report.run.config.models.get(row.label, row.label)
                    key = Series(model, row.label, row.load.name, f.name, f.title, f.unit, f.better, where)
                    sight = Sight(report.run.started, (client.get("commit") or "")[:10], f.value, row.valid)
                    found.setdefault(key, []).append(sight)
    return [replace(key, seen=tuple(seen)) for key, seen in found.items()]


def steps(values: Sequence[float]) -> list[tuple[int, float, float]]:
    """Where the level changes: (first index after, median before, median after), by binary segmentation.

    A split is the one with the least absolute deviation from the medians on its sides; it counts if a Mann-Whitney
    test gives p < 0.002, the threshold of airspeed velocity.
    """
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2 * LEAST:
        return []
    at = min(range(LEAST, len(x) - LEAST + 1), key=lambda i: _deviation(x[:i]) + _deviation(x[i:]))
    if mannwhitneyu(x[:at], x[at:]).pvalue >= P_VALUE:
        return []
    left, right = steps(values[:at]), [(at + i, a, b) for i, a, b in steps(values[at:])]
    return [*left, (at, float(np.median(x[:at])), float(np.median(x[at:]))), *right]


def _deviation(x: np.ndarray) -> float:
    return float(np.abs(x - np.median(x)).sum())
