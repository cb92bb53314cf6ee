"""Numbers as people read them."""

from __future__ import annotations

from math import floor, isfinite, log10

from reports.summary import Figure


def significant(value: float | None, digits: int = 3) -> str:
    """Three significant digits, never in scientific notation: 1234, 12.3, 0.0123; "n/a" for what is no number."""
    if value is None or not isfinite(value):
        return "n/a"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - floor(log10(abs(value))))
    return f"{value:.{places}f}"


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit; seconds under one become milliseconds; "n/a" where there is none."""
    if value is None:
        return "n/a"
    if unit == "s" and abs(value) < 1:
        return f"{significant(1000 * value)} ms"
    return f"{significant(value)} {unit}".replace(" x", "x")


def with_interval(figure: Figure) -> str:
    """12.3 ms [11.9, 13.0]: the interval in the unit of the value."""
    text = quantity(figure.value, figure.unit)
    if figure.low is None or figure.high is None or figure.value is None:
        return text
    scale = 1000 if text.endswith(" ms") else 1
    return f"{text} [{significant(scale * figure.low)}, {significant(scale * figure.high)}]"


def percentile(figure: Figure, p: int) -> str:
    """A percentile, with a mark where there are too few values for it."""
    text = quantity(figure.quantile(p), figure.unit)
    return f"{text} *" if p in figure.doubtful else text
