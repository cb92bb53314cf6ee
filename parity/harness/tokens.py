"""Token sequences: where they part, whether that could be rounding, and whether the rest is right all the
same.

At the first difference the reference's logits say how close its choice was: `tie` (at most `TIE_ULP`
representable numbers apart), `near-tie` (closer than the noise that the reference shows against itself), or
`divergent`. What follows a difference cannot be compared freely, so the port is run on the reference's
tokens (*teacher-forced*) and each of its choices is judged alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

TIE_ULP = 4
TokenClass = Literal["exact", "tie", "near-tie", "divergent"]
ORDER: tuple[TokenClass, ...] = ("exact", "tie", "near-tie", "divergent")


@dataclass(frozen=True)
class Step:
    """One step where the port chose another token. `margin`: the reference's logit of its choice minus the port's."""

    index: int
    expected: int
    actual: int
    margin: float
    kind: TokenClass


@dataclass(frozen=True)
class TokenResult:
    """The worst class, the first free-running difference, and every teacher-forced one."""

    kind: TokenClass
    allowed: TokenClass
    noise: float
    length: int
    first: Step | None = None
    forced: tuple[Step, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason and ORDER.index(self.kind) <= ORDER.index(self.allowed)

    def __str__(self) -> str:
        lines = [f"tokens: {'pass' if self else 'FAIL'} {self.kind}, needs {self.allowed} or better"]
        if self.reason:
            lines.append(f"  {self.reason}")
        for label, steps in (("first", [self.first] if self.first else []), ("teacher-forced", self.forced)):
            for s in steps:
                lines.append(
                    f"  {label}: step {s.index} of {self.length}: expected {s.expected}, got {s.actual}, "
                    f"margin {s.margin:.3g}, noise floor {self.noise:.3g}: {s.kind}"
                )
        return "\n".join(lines)


def noise_floor(logits: Tensor, again: Tensor) -> float:
    """What a margin may move between two runs of the reference: twice the largest change of one logit.

    The runs differ in what should not matter, batch size say; both are [T, V].
    """
    both = (logits.to(torch.float64) - again.to(torch.float64)).abs()
    finite = both[torch.isfinite(both)]
    return 2.0 * float(finite.max()) if finite.numel() else 0.0


def judge(logits: Tensor, expected: int, actual: int, noise: float) -> tuple[TokenClass, float]:
    """The class of one choice and its margin, from the reference's logits [V]."""
    if expected == actual:
        return "exact", 0.0
    margin = float(logits[expected].to(torch.float64) - logits[actual].to(torch.float64))
    scale = logits[expected].abs()
    ulp = float(torch.nextafter(scale, torch.full_like(scale, torch.inf)) - scale)
    if margin <= TIE_ULP * ulp:
        return "tie", margin
    return ("near-tie" if margin <= noise else "divergent"), margin


def _first(expected: Sequence[int], actual: Sequence[int]) -> int | None:
    for index, (a, b) in enumerate(zip(expected, actual, strict=False)):
        if a != b:
            return index
    return None


def _forced(expected: Sequence[int], logits: Tensor, chosen: Tensor, noise: float) -> list[Step]:
    steps = []
    for index in (chosen != torch.tensor(list(expected))).nonzero().reshape(-1).tolist():
        kind, margin = judge(logits[index], expected[index], int(chosen[index]), noise)
        steps.append(Step(index, expected[index], int(chosen[index]), margin, kind))
    return steps


def compare_tokens(
    expected: Sequence[int],
    actual: Sequence[int],
    logits: Tensor,
    *,
    force: Callable[[Sequence[int]], Tensor] | None = None,
    noise: float = 0.0,
    allowed: TokenClass = "exact",
) -> TokenResult:
    """Classify a port's greedy tokens against the reference's.

    `logits` [T, V] are the reference's at each step, after its own masking. `force(expected)` gives the
    port's logits [T, V] when fed the reference's tokens; without it a difference before the end is
    `divergent`, since nothing after it has been tested. Length counts: a sequence that stops early or late
    is divergent unless it parted before.
    """
    at = _first(expected, actual)
    if at is None:
        if len(expected) == len(actual):
            return TokenResult("exact", allowed, noise, len(expected))
        reason = f"lengths differ: expected {len(expected)}, got {len(actual)}"
        return TokenResult("divergent", allowed, noise, len(expected), reason=reason)
    kind, margin = judge(logits[at], expected[at], actual[at], noise)
    first = Step(at, expected[at], actual[at], margin, kind)
    if force is None:
        last = at == len(expected) - 1
        untested = "" if last else "no teacher-forced run: the steps after the first are untested"
        return TokenResult(kind, allowed, noise, len(expected), first, reason=untested)
    forced = _forced(expected, logits, force(expected).argmax(dim=-1).cpu(), noise)
    worst = max([first, *forced], key=lambda step: ORDER.index(step.kind))
    return TokenResult(worst.kind, allowed, noise, len(expected), first, tuple(forced))
