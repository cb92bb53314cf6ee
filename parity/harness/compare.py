"""Comparators. Each gives a `Result`: true or false, with the smallest passing tolerance and the worst
element.

`METRICS` are the measures between two tensors of one shape. Lower is better for distances, where the bound
is the most that passes; higher is better for ratios in dB and similarities, where it is the least that
passes.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Better = Literal["lower", "higher"]


def meets(better: Better, observed: float, bound: float) -> bool:
    """The rule of every gate. NaN never passes."""
    return observed <= bound if better == "lower" else observed >= bound


@dataclass(frozen=True)
class Measure:
    """What a metric found: its value, and the index of the worst element where there is one."""

    value: float
    worst: tuple[int, ...] | None = None
    detail: str = ""


@dataclass(frozen=True)
class Metric:
    """A measure between two tensors and its direction."""

    name: str
    better: Better
    measure: Callable[[Tensor, Tensor], Measure]
    decibel: bool = False

    def passes(self, observed: float, bound: float) -> bool:
        """Whether an observation meets a bound."""
        return meets(self.better, observed, bound)

    def rounded(self, observed: float, factor: float = 1.0) -> float:
        """The tightest bound of two digits that `observed`, worsened by `factor`, still meets."""
        if not math.isfinite(observed) or observed == 0.0:
            return observed
        if self.decibel:
            return math.floor((observed - 20 * math.log10(factor)) * 10) / 10
        if self.better == "higher":  # similarities approach 1
            floor = 1.0 - _up((1.0 - observed) * factor)
            return min(floor, observed)
        return _up(observed * factor)

    def slack(self, observed: float, bound: float) -> float:
        """How many times too loose a passing bound is: 1 where they meet, infinite over an exact result."""
        if self.decibel:
            return math.inf if math.isinf(observed) else 10 ** ((observed - bound) / 20)
        far, near = (bound, observed) if self.better == "lower" else (1.0 - bound, 1.0 - observed)
        return 1.0 if far == near else math.inf if near <= 0.0 else far / near


def _up(value: float) -> float:
    """Rounded up to two significant digits; never below the value."""
    if value <= 0.0:
        return 0.0
    exact = Decimal(repr(value))
    step = Decimal(1).scaleb(exact.adjusted() - 1)
    return float((exact / step).to_integral_value(ROUND_CEILING) * step)


@dataclass(frozen=True)
class Result:
    """The outcome of one comparison. Truth is whether it passed."""

    metric: str
    observed: float
    bound: float
    better: Better
    passing: float  # the smallest tolerance (lower is better) or the highest floor that would pass
    name: str = ""
    worst: tuple[int, ...] | None = None
    expected: float | None = None  # at `worst`
    actual: float | None = None
    reason: str = ""  # why no comparison was possible: shapes, dtypes
    reproduce: str = ""

    def __bool__(self) -> bool:
        return not self.reason and meets(self.better, self.observed, self.bound)

    def __str__(self) -> str:
        sign = "<=" if self.better == "lower" else ">="
        lines = [f"{self.name or 'result'}: {'pass' if self else 'FAIL'}"]
        if self.reason:
            lines.append(f"  {self.reason}")
        else:
            lines[0] += f" {self.metric} {self.observed:.6g}, needs {sign} {self.bound:.6g}"
            lines.append(f"  smallest passing tolerance: {self.metric} {sign} {self.passing:.6g}")
        if self.worst is not None:
            lines.append(f"  worst at {list(self.worst)}: expected {self.expected!r}, got {self.actual!r}")
        return "\n".join([*lines, *([f"  reproduce: {self.reproduce}"] if self.reproduce else [])])

    def named(self, name: str, reproduce: str = "") -> Result:
        """The same result under a name, with the command that repeats it."""
        return replace(self, name=name, reproduce=reproduce)


def decibels(ratio: float) -> float:
    """10 log10 of a power ratio, with its limits at 0 and infinity; NaN stays NaN."""
    return -math.inf if ratio == 0.0 else 10 * math.log10(ratio) if ratio < math.inf else ratio


def at_most_one(similarity: float) -> float:
    """Rounding may carry a cosine past 1; NaN stays NaN, which `min` would turn into 1."""
    return 1.0 if similarity > 1.0 else similarity


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    # numpy's, because torch's imports a computer algebra system
    return tuple(int(i) for i in np.unravel_index(flat, shape)) if shape else ()


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8).reshape(tensor.numel(), -1)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _gap(expected: Tensor, actual: Tensor) -> Tensor:
    """|expected - actual| in float64; equal infinities and NaNs are 0 apart, any other non-finite pair infinitely."""
    a, b = _wide(expected), _wide(actual)
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, torch.nan_to_num((a - b).abs(), nan=math.inf, posinf=math.inf))


def _at_worst(values: Tensor) -> Measure:
    """The largest of per-element badness, and where it is; nowhere if it is 0."""
    if not values.numel():
        return Measure(0.0)
    flat = int(values.reshape(-1).argmax())
    worst = float(values.reshape(-1)[flat])
    return Measure(worst, _index(flat, tuple(values.shape)) if worst != 0.0 else None)


def exact(expected: Tensor, actual: Tensor) -> Measure:
    """How many elements differ in any bit; 0 only for identical bytes (so -0.0 is not 0.0)."""
    wrong = (_bits(expected) != _bits(actual)).any(dim=1)
    count = int(wrong.sum())
    if not count:
        return Measure(0.0)
    gap = torch.where(wrong, _gap(expected, actual).reshape(-1), -1.0)
    return Measure(float(count), _index(int(gap.argmax()), tuple(expected.shape)))


def max_abs(expected: Tensor, actual: Tensor) -> Measure:
    """max |a - b|."""
    return _at_worst(_gap(expected, actual))


def mean_abs(expected: Tensor, actual: Tensor) -> Measure:
    """mean |a - b|, with the worst element."""
    gap = _gap(expected, actual)
    return Measure(float(gap.mean()) if gap.numel() else 0.0, _at_worst(gap).worst)


def max_rel(expected: Tensor, actual: Tensor) -> Measure:
    """max |a - b| / |a|, elements that are both 0 left out."""
    gap = _gap(expected, actual)
    size = _wide(expected).abs()
    ratio = torch.where(gap == 0.0, 0.0, gap / size)
    return _at_worst(torch.nan_to_num(ratio, nan=math.inf, posinf=math.inf))


def _ordered(tensor: Tensor) -> Tensor:
    """Floats as integers in the same order, neighbours one apart."""
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bits = tensor.contiguous().view(width).to(torch.int64)
    lowest = torch.iinfo(width).min
    return torch.where(bits < 0, lowest - bits, bits)


def ulp(expected: Tensor, actual: Tensor) -> Measure:
    """The most representable numbers between two elements, in their own dtype."""
    if not expected.is_floating_point():
        return max_abs(expected, actual)
    steps = (_ordered(expected) - _ordered(actual)).abs().to(torch.float64)
    finite = expected.isfinite() & actual.isfinite()
    return _at_worst(torch.where(finite, steps, _gap(expected, actual)))


def cosine(expected: Tensor, actual: Tensor) -> Measure:
    """Cosine of the angle between the flattened tensors; two zero tensors are at 1."""
    a, b = _wide(expected).reshape(-1), _wide(actual).reshape(-1)
    scale = float(a.norm() * b.norm())
    if scale == 0.0:
        return Measure(float(float(a.norm()) == float(b.norm())))
    return Measure(at_most_one(float((a @ b.conj()).real) / scale))


def nmse(expected: Tensor, actual: Tensor) -> Measure:
    """sum (a - b)^2 / sum a^2: free of scale, so one bound serves many layers."""
    gap, signal = _gap(expected, actual), float(_wide(expected).abs().square().sum())
    noise = float(gap.square().sum())
    return Measure(0.0 if noise == 0.0 else noise / signal if signal else math.inf, _at_worst(gap).worst)


def snr(expected: Tensor, actual: Tensor) -> Measure:
    """10 log10(signal power / error power) dB; infinite for equal tensors."""
    found = nmse(expected, actual)
    return Measure(-decibels(found.value), found.worst)


def scalar(expected: Tensor, actual: Tensor) -> Measure:
    """For measures that are computed elsewhere, over a corpus say: the number itself."""
    return Measure(float(actual))


METRICS: dict[str, Metric] = {
    m.name: m
    for m in (
        Metric("exact", "lower", exact),
        Metric("max_abs", "lower", max_abs),
        Metric("mean_abs", "lower", mean_abs),
        Metric("max_rel", "lower", max_rel),
        Metric("ulp", "lower", ulp),
        Metric("cosine", "higher", cosine),
        Metric("nmse", "lower", nmse),
        Metric("snr", "higher", snr, decibel=True),
    )
}


def metric(name: str) -> Metric:
    """A metric by name; `KeyError` names the nearest."""
    if name not in METRICS:
        close = difflib.get_close_matches(name, METRICS, n=1) or sorted(METRICS)
        raise KeyError(f"no metric {name!r}; did you mean {', '.join(close)}?")
    return METRICS[name]


def _mismatch(expected: Tensor, actual: Tensor) -> str:
    if expected.shape != actual.shape:
        return f"shapes differ: expected {list(expected.shape)}, got {list(actual.shape)}"
    if expected.dtype != actual.dtype:
        return f"dtypes differ: expected {expected.dtype}, got {actual.dtype}"
    return ""


def _value(tensor: Tensor, index: tuple[int, ...] | None) -> Any:
    return None if index is None or not tensor.numel() or len(index) != tensor.ndim else tensor[index].item()


def compare(expected: Tensor, actual: Tensor, by: str = "max_abs", bound: float = 0.0) -> Result:
    """Compare two tensors by a metric of `METRICS`.

    Shapes and dtypes must be equal; where they are not, the result is false and says so. Tensors are
    brought to the host; distances are computed in float64.
    """
    chosen = metric(by)
    expected, actual = expected.detach().cpu(), torch.as_tensor(actual).detach().cpu()
    worst_value = math.inf if chosen.better == "lower" else -math.inf
    if reason := _mismatch(expected, actual):
        return Result(by, worst_value, bound, chosen.better, worst_value, reason=reason)
    found = chosen.measure(expected, actual)
    return Result(
        by,
        found.value,
        bound,
        chosen.better,
        chosen.rounded(found.value),
        worst=found.worst,
        expected=_value(expected, found.worst),
        actual=_value(actual, found.worst),
    )


def like(expected: Tensor, actual: Tensor) -> Tensor:
    """`actual` in the shape of `expected` if they differ only in dimensions of size 1: a packed batch of one, say."""

    def core(shape: Iterable[int]) -> list[int]:
        return [size for size in shape if size != 1]

    return actual.reshape(expected.shape) if core(actual.shape) == core(expected.shape) else actual


def profile(expected: Tensor, actual: Tensor) -> Mapping[str, float]:
    """Every distance at once, for reports: `METRICS` values by name, empty where shapes or dtypes differ."""
    expected, actual = expected.detach().cpu(), actual.detach().cpu()
    if _mismatch(expected, actual):
        return {}
    return {name: METRICS[name].measure(expected, actual).value for name in ("max_abs", "nmse", "ulp", "cosine")}
