"""Summaries of a sample, with the number of values behind them and a flag where they are too few."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Summary:
    """`insufficient` lists the percentiles that n values cannot support."""

    n: int
    mean: float
    std: float
    min: float
    max: float
    p50: float
    p90: float
    p95: float
    p99: float
    insufficient: tuple[int, ...]


def needed(percentile: float) -> int:
    """Values that a percentile needs so that about ten lie beyond it: 10 / (1 - p)."""
    return round(10 / (1 - percentile / 100))


def summarise(values: Sequence[float]) -> Summary | None:
    """Percentiles by linear interpolation, sample standard deviation; None for no values."""
    if not values:
        return None
    x = np.asarray(values, dtype=np.float64)
    p50, p90, p95, p99 = (float(v) for v in np.percentile(x, PERCENTILES))
    std = float(x.std(ddof=1)) if len(x) > 1 else 0.0
    few = tuple(p for p in PERCENTILES if len(x) < needed(p))
    return Summary(len(x), float(x.mean()), std, float(x.min()), float(x.max()), p50, p90, p95, p99, few)
