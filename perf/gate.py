"""Is B slower than A? Repeats of both, taken in turns; "inconclusive" is an answer.

A regression is a failure only when the whole bootstrap interval of the ratio lies beyond what is allowed and
a Mann-Whitney test says that the samples differ. It is a pass when the whole interval lies within.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from scipy.stats import PermutationMethod, mannwhitneyu

from perf.metrics import FIRST, HEADLINE, Metric, for_route, objectives
from perf.metrics.base import Spread
from perf.schema import Load, Point, Run
from perf.validity import flags, used
from serving.errors import BadRequest, nearest

REPEATS = 5  # fewer than these on either side never decide
P_VALUE = 0.01
CONFIDENCE = 0.95
RESAMPLES = 10_000

Verdict = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A on one metric at one load. `ratio` is B / A of medians over repeats, with its interval."""

    target: str  # which B
    metric: str
    better: str
    load: Load
    a: tuple[float, ...]  # one value a repeat
    b: tuple[float, ...]
    ratio: float | None  # None: nothing to divide
    low: float | None  # None: one repeat has no interval
    high: float | None
    p: float
    allowed: float
    verdict: Verdict
    reason: str

    def __bool__(self) -> bool:
        return self.verdict != "fail"

    @property
    def finding(self) -> str:
        """The verdict as a statement about B."""
        return {"pass": "not worse", "fail": "worse", "inconclusive": "inconclusive"}[self.verdict]

    def __str__(self) -> str:
        ratio = "no ratio" if self.ratio is None else f"B/A {self.ratio:.3f}"
        interval = "" if self.low is None or self.high is None else f" [{self.low:.3f}, {self.high:.3f}]"
        counted = f"p={self.p:.3g}, {len(self.a)}+{len(self.b)} repeats"
        what = f"{self.target}, {self.metric} at {self.load.name}"
        return f"{what}: {self.verdict} - {ratio}{interval}, {counted}; {self.reason}"


def compare(
    a: Run,
    b: Run,
    metrics: Sequence[str] = (),
    *,
    allowed: float = 0.05,
    label_a: str | None = None,
    label_b: str | None = None,
) -> list[Comparison]:
    """Compare two runs, or two labels of one run, at every load that both have.

    `metrics`: names of the route's metrics (none: throughput and first response). `allowed`: the loss that is
    still fine, as a share: 0.05 lets a latency rise by 5 % and a throughput fall to 1 / 1.05. A distribution
    counts by its median, one value a repeat. A repeat that the machine spoilt is left out where another is fit; other
    points that a validity check rejects make it inconclusive.
    """
    label_a, label_b = (_only(run, label) for run, label in ((a, label_a), (b, label_b)))
    route, other = a.config.routes[label_a], b.config.routes[label_b]
    if other != route:
        raise BadRequest(f"Cannot compare {route} with {other}.", param="route")
    known = for_route(route, objectives({**a.config.slos, **b.config.slos}, {*a.config.routes.values(), route})[route])
    for name in metrics:
        if name not in known:
            raise BadRequest(f'No metric "{name}" on this route.{nearest(name, known)}', param="metrics")
    left, right = _by_load(a, label_a), _by_load(b, label_b)
    shared = [load for load in left if load in right]
    if not shared:
        raise BadRequest("The runs have no load in common.", param="against")
    trusted = {load: _trusted(left[load], a) and _trusted(right[load], b) for load in shared}
    names = metrics or (HEADLINE[route], FIRST[route])
    found = []
    for load, name in product(shared, names):
        x, y = (_values(known[name], side[load]) for side in (left, right))
        found.append(judge(known[name], load, x, y, allowed, trusted[load], label_b))
    return found


def judge(
    metric: Metric,
    load: Load,
    a: Sequence[float],
    b: Sequence[float],
    allowed: float,
    trusted: bool = True,
    target: str = "B",
) -> Comparison:
    """The verdict on two samples, one value a repeat."""
    ratio, low, high = ratio_interval(a, b)
    # By permutation: repeats are few and may tie, where the normal approximation is far off.
    exact = PermutationMethod(n_resamples=RESAMPLES, rng=0)
    p = float(mannwhitneyu(a, b, method=exact).pvalue) if min(len(a), len(b)) > 1 else 1.0
    worse = (low or np.nan, high or np.nan) if metric.better == "lower" else (1 / (high or np.nan), 1 / (low or np.nan))
    verdict, reason = _decide(worse, p, min(len(a), len(b)), allowed, trusted)
    head = (target, metric.name, metric.better, load, tuple(a), tuple(b))
    return Comparison(*head, ratio, low, high, p, allowed, verdict, reason)


def _decide(worse: tuple[float, float], p: float, n: int, allowed: float, trusted: bool) -> tuple[Verdict, str]:
    """`worse`: interval of the loss ratio, 1 = equal, above = B is worse."""
    if n < REPEATS:
        return "inconclusive", f"{REPEATS} repeats of each decide; there are {n}"
    if not trusted:
        return "inconclusive", "a point is marked invalid"
    if worse[0] > 1 + allowed and p < P_VALUE:
        return "fail", f"worse by more than {100 * allowed:g} %"
    if worse[1] <= 1 + allowed:
        return "pass", f"within {100 * allowed:g} %"
    return (
        "inconclusive",
        f"the interval reaches over {100 * allowed:g} %: more repeats, or a quieter machine",
    )


Ratio = tuple[float | None, float | None, float | None]


def ratio_interval(a: Sequence[float], b: Sequence[float], seed: int = 0) -> Ratio:
    """median(b) / median(a) and its percentile bootstrap interval; None where there is none."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if not len(x) or not len(y) or np.median(x) == 0:
        return None, None, None
    ratio = float(np.median(y) / np.median(x))
    if min(len(x), len(y)) < 2 or min(x.min(), y.min()) <= 0:
        return ratio, None, None
    rng = np.random.default_rng(seed)
    over = np.median(rng.choice(y, (RESAMPLES, len(y))), axis=1)
    under = np.median(rng.choice(x, (RESAMPLES, len(x))), axis=1)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(over / under, [tail, 100 - tail])
    return ratio, float(low), float(high)


def overall(comparisons: Sequence[Comparison]) -> Verdict:
    """One verdict for all: a failure decides, then a doubt."""
    found = {c.verdict for c in comparisons}
    return "fail" if "fail" in found else "inconclusive" if "inconclusive" in found or not found else "pass"


def _only(run: Run, label: str | None) -> str:
    """The label that is meant: the one that is named, or the only one."""
    labels = {p.label for p in run.points}
    if label is None and len(labels) != 1:
        known = ", ".join(sorted(labels)) or "it has no points"
        raise BadRequest(f"Say which target of the run is meant: {known}.", param="label")
    return label or labels.pop()


def _by_load(run: Run, label: str) -> Mapping[Load, list[Point]]:
    found: dict[Load, list[Point]] = defaultdict(list)
    for point in run.points:
        if label == point.label:
            found[point.load].append(point)
    return {load: used(points, run.config, run.client.get("cores", 1)) for load, points in found.items()}


def _values(metric: Metric, points: Sequence[Point]) -> list[float]:
    if isinstance(metric, Spread):
        return [float(np.median(values)) for p in points if (values := metric.values(p))]
    results = (metric.result(p).value for p in points)
    return [value for value in results if value is not None]


def _trusted(points: Sequence[Point], run: Run) -> bool:
    cores = run.client.get("cores", 1)
    return not any(flag.level == "invalid" for p in points for flag in flags(p, run.config, cores))
