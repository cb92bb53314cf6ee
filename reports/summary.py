"""From a run's events to the figures that every report shows. Pure: the same run gives the same summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from perf.gate import Comparison, compare
from perf.metrics import FIRST, HEADLINE, Metric, for_run, objectives
from perf.metrics.base import Spread
from perf.metrics.stats import Summary, summarise
from perf.metrics.totals import Counts, counts, failures
from perf.schema import Check, Config, Load, Point, Run
from perf.sweep import Step, highest_rate, knee, steps
from perf.validity import MACHINE, Flag, flags, used

EXTRA = ("rtf", "first_share", "c100", "wer", "tpot", "final", "goodput")
RESAMPLES = 2000
TAIL = 2.5  # percent on each side of an interval


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric over all repeats at one load.

    A distribution is pooled: `value` is its median, [low, high] that one's bootstrap interval.
    A total is the mean over repeats, with an interval from three repeats on. None: nothing to say.
    """

    name: str
    title: str
    unit: str
    better: str
    needs: str
    n: int
    value: float | None
    low: float | None = None
    high: float | None = None
    spread: Summary | None = None

    def quantile(self, p: int) -> float | None:
        return getattr(self.spread, f"p{p}") if self.spread else None

    @property
    def doubtful(self) -> tuple[int, ...]:
        """Percentiles that n values cannot support."""
        return self.spread.insufficient if self.spread else ()


@dataclass(frozen=True, slots=True)
class Row:
    """One target at one load."""

    label: str
    load: Load
    points: tuple[Point, ...]
    figures: Mapping[str, Figure]
    counts: Counts
    failures: Mapping[str, int]
    flags: tuple[Flag, ...]
    checks: tuple[Check, ...]
    parts: tuple[Row, ...] = ()  # of a mixed workload: each kind of request by itself

    @property
    def name(self) -> str:
        return f"{self.label} {self.load.name}"

    @property
    def valid(self) -> bool:
        return not any(flag.level == "invalid" for flag in self.flags)


@dataclass(frozen=True, slots=True)
class Found:
    """An answer of a sweep."""

    label: str
    what: str
    step: Step

    def __str__(self) -> str:
        return f"{self.label}: {self.what} {self.step.load.name}, {self.step.good:.3g} % of requests good"


@dataclass(frozen=True)
class Report:
    """Everything that the writers need."""

    run: Run
    rows: tuple[Row, ...]

    @cached_property
    def sections(self) -> list[Report]:
        """The report of each route, in the order of the targets: figures of different routes share no table."""
        routes = self.run.config.routes
        names = dict.fromkeys(routes.values())
        return [Report(self.run, tuple(r for r in self.rows if routes[r.label] == name)) for name in names]

    @property
    def routes(self) -> list[str]:
        """The routes of its targets."""
        return list(dict.fromkeys(self.run.config.routes[label] for label in self.labels))

    @property
    def route(self) -> str:
        """The route of a section."""
        (route,) = self.routes or list(self.run.config.routes.values())[:1]
        return route

    @property
    def headline(self) -> str:
        """Name of the route's throughput metric."""
        return HEADLINE[self.route]

    @property
    def first(self) -> str:
        """Name of the route's first-response metric."""
        return FIRST[self.route]

    @property
    def extra(self) -> list[Figure]:
        """Metrics beside these two that say something on this route, as figures of any row."""
        seen = [row.figures[name] for name in EXTRA for row in self.rows if name in row.figures]
        return list({figure.name: figure for figure in seen if figure.value is not None}.values())

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(row.label for row in self.rows))

    @property
    def verdict(self) -> Literal["valid", "valid with warnings", "invalid"]:
        levels = {flag.level for row in self.rows for flag in row.flags}
        if "invalid" in levels or self.run.partial or not self.rows:
            return "invalid"
        return "valid with warnings" if levels else "valid"

    @cached_property
    def found(self) -> list[Found]:
        """The knee and the highest rate of each target, where enough loads were tried."""
        return [f for label in self.labels for f in _found(self.run, label)]

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Every other target against the first one of its route."""
        return [c for section in self.sections for c in _against_the_first(self.run, section.labels)]


def build(run: Run) -> Report:
    """The summary of a run."""
    metrics = {route: for_run(run.config, route) for route in run.config.routes.values()}
    groups: dict[tuple[str, Load], list[Point]] = {}
    for point in run.points:
        groups.setdefault((point.label, point.load), []).append(point)
    labels = list(run.config.models)
    keys = sorted(groups, key=lambda key: (labels.index(key[0]), key[1].kind, key[1].level))
    return Report(run, tuple(_row(run, *key, groups[key], metrics[run.config.routes[key[0]]]) for key in keys))


def _against_the_first(run: Run, labels: Sequence[str]) -> list[Comparison]:
    base, *others = labels or [""]
    found = (compare(run, run, label_a=base, label_b=other) for other in others)
    return [comparison for comparisons in found for comparison in comparisons]


def _found(run: Run, label: str) -> list[Found]:
    first_repeats = [p for p in run.points if p.label == label and p.repeat == 0]
    route = run.config.routes[label]
    slos = objectives(run.config.slos, run.config.routes.values())[route]
    loops, rates = (steps(first_repeats, route, slos, kind) for kind in ("closed", "poisson"))
    top = knee(loops) if len(loops) > 2 else None
    held = highest_rate(rates) if len(rates) > 1 and slos else None
    found = [Found(label, "knee at", top)] if top else []
    return found + ([Found(label, "highest rate that holds", held)] if held else [])


def _row(run: Run, label: str, load: Load, points: list[Point], metrics: Mapping[str, Metric]) -> Row:
    cores, made = run.client.get("cores", 1), points
    points = used(made, run.config, cores)
    each = [counts(p) for p in points]
    kept = {p.repeat for p in points}
    left_out = [p for p in made if p.repeat not in kept]
    return Row(
        label=label,
        load=load,
        points=tuple(points),
        figures={name: figure(metric, points) for name, metric in metrics.items()},
        counts=Counts(*(sum(getattr(c, name) for c in each) for name in ("sent", "ok", "failed", "dropped"))),
        failures=sum((failures(p) for p in points), Counter()),
        flags=_flags([flags(p, run.config, cores) for p in points]) + _left_out(left_out, run.config, cores, len(made)),
        checks=tuple(check for p in points for check in p.checks),
        parts=tuple(_row(run, f"{label}, {part}", load, _of_part(points, part), metrics) for part in _parts(points)),
    )


def _left_out(points: Sequence[Point], config: Config, cores: int, made: int) -> tuple[Flag, ...]:
    """What is said of repeats that the machine spoilt."""
    why = dict.fromkeys(f.message for p in points for f in flags(p, config, cores) if f.code in MACHINE)
    said = f"{len(points)} of {made} repeats left out: {'; '.join(why)}"
    return (Flag("warning", "left_out", said),) if points else ()


def _parts(points: Sequence[Point]) -> list[str]:
    """The kinds of requests, where there are several."""
    found = {r.part for p in points for r in p.records}
    return sorted(found) if len(found) > 1 else []


def _of_part(points: Sequence[Point], part: str) -> list[Point]:
    """The points as if the other kinds were somebody else's."""
    return [replace(p, records=[r for r in p.records if r.part == part], checks=[]) for p in points]


def _flags(found: Sequence[Sequence[Flag]]) -> tuple[Flag, ...]:
    """One flag a reason, saying in how many of the repeats it was raised."""
    kinds: dict[str, list[Flag]] = {}
    for flag in sorted((f for repeat in found for f in repeat), key=lambda f: f.level):
        kinds.setdefault(flag.code, []).append(flag)
    n = len(found)
    said = {code: f"{same[0].message} ({len(same)} of {n} repeats)" for code, same in kinds.items()}
    return tuple(replace(same[0], message=said[code]) if n > 1 else same[0] for code, same in kinds.items())


def figure(metric: Metric, points: Sequence[Point]) -> Figure:
    """A metric over repeats."""
    head = (metric.name, metric.title, metric.unit, metric.better, metric.needs)
    if isinstance(metric, Spread):
        values = [value for point in points for value in metric.values(point)]
        spread = summarise(values)
        low, high = _interval(values, np.median)
        return Figure(*head, len(values), spread.p50 if spread else None, low, high, spread)
    results = [metric.result(point) for point in points]
    values = [r.value for r in results if r.value is not None]
    low, high = _interval(values, np.mean) if len(values) >= 3 else (None, None)
    return Figure(*head, sum(r.n for r in results), float(np.mean(values)) if values else None, low, high)


def _interval(values: Sequence[float], statistic: Any) -> tuple[float | None, float | None]:
    """A 95 % percentile bootstrap interval, seeded; none for fewer than three values."""
    if len(values) < 3:
        return None, None
    drawn = np.random.default_rng(0).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.percentile(statistic(drawn, axis=1), [TAIL, 100 - TAIL])
    return float(low), float(high)


def as_dict(report: Report) -> dict[str, Any]:
    """report.json: the summary without the events."""
    run = report.run
    return {
        "version": run.version,
        "verdict": report.verdict,
        "partial": run.partial,
        "started": run.started,
        "config": asdict(run.config),
        "client": run.client,
        "servers": run.servers,
        "rows": [_row_dict(row) for row in report.rows],
        "found": [{"label": f.label, "what": f.what, **asdict(f.step)} for f in report.found],
        "comparisons": [{**asdict(c), "load": c.load.name} for c in report.comparisons],
    }


def _row_dict(row: Row) -> dict[str, Any]:
    return {
        "label": row.label,
        "load": row.load.name,
        "repeats": len(row.points),
        "seconds": sum(p.seconds for p in row.points),
        "counts": asdict(row.counts),
        "failures": dict(row.failures),
        "flags": [asdict(flag) for flag in row.flags],
        "checks": [asdict(check) for check in row.checks],
        "figures": {name: asdict(found) for name, found in row.figures.items()},
        "parts": [_row_dict(part) for part in row.parts],
    }
