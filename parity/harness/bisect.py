"""First divergence: which layer is wrong, as against which layers were handed something wrong.

The port runs once under taps, which are compared in execution order. Each of its layers is then run alone
on the
*reference's* input of that layer. A layer that differs there is wrong itself; one that differs only in the
whole run has inherited it. Children finish before parents, so the first layer wrong on the reference's own
input is the innermost one: a missing scale inside an attention is named `attn`, not `attn.out`, which
merely inherits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from parity.harness.cases import Case
from parity.harness.compare import Result, compare
from parity.harness.taps import Names, Trace, outputs, recording

Verdict = Literal["equal", "wrong here", "inherited", "differs"]
Compare = Callable[[str, Tensor, Tensor], Result]
Adapter = Callable[[Mapping[str, Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]


def positional(inputs: Mapping[str, Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The reference's call as it was: "[i]" by position, with None where it had no tensor, ".name" by
    keyword.
    """
    placed = {int(name[1:-1]): tensor for name, tensor in inputs.items() if re.fullmatch(r"\[\d+\]", name)}
    args = tuple(placed.get(i) for i in range(max(placed, default=-1) + 1))
    return args, {name[1:]: tensor for name, tensor in inputs.items() if name.startswith(".")}


@dataclass(frozen=True)
class Row:
    """One tap: in the whole run, and on the reference's own input (None: it could not be run alone)."""

    tap: str  # the reference's name
    path: str  # our module path, with "#n" from its second call on
    whole: Result
    alone: Result | None

    @property
    def verdict(self) -> Verdict:
        if self.alone is not None and not self.alone:
            return "wrong here"
        if self.whole:
            return "equal"
        return "differs" if self.alone is None else "inherited"


@dataclass
class Divergence:
    """The table of a bisection. True when every tap is within its bound."""

    rows: list[Row] = field(default_factory=list)
    untouched: list[str] = field(default_factory=list)  # recorded taps that the port never gave

    def __bool__(self) -> bool:
        return all(row.verdict == "equal" for row in self.rows)

    @property
    def first(self) -> Row | None:
        """The innermost layer that is wrong on the reference's own input, or the first to differ at all."""
        wrong = [row for row in self.rows if row.verdict == "wrong here"]
        return next(iter(wrong or [row for row in self.rows if row.verdict != "equal"]), None)

    def __str__(self) -> str:
        if not self.rows:
            return "bisect: no tap of the port has a name that the case knows"
        first = self.first
        head = "every tap is equal" if first is None else f"first divergence: {first.path} ({first.verdict})"
        lines = [f"bisect: {head}", f"  {'tap':40} {'whole run':>12} {'own input':>12}  verdict"]
        for row in self.rows:
            alone = "-" if row.alone is None else f"{row.alone.observed:.3g}"
            lines.append(f"  {row.tap:40} {row.whole.observed:12.3g} {alone:>12}  {row.verdict}")
        if self.untouched:
            lines.append(f"  not given by the port: {', '.join(self.untouched)}")
        return "\n".join(lines)


def _reference_inputs(taps: Mapping[str, Tensor], tap: str) -> dict[str, Tensor]:
    prefix = f"{tap}:in"
    return {name.removeprefix(prefix): tensor for name, tensor in taps.items() if name.startswith(prefix)}


@dataclass
class Bisector:
    """A port's module beside a case. `adapters`: (our path pattern as in `Names`) -> how to call that layer alone."""

    case: Case
    module: nn.Module
    names: Names = field(default_factory=Names)
    prefix: str = ""
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    by: Compare = field(default=lambda _, expected, actual: compare(expected, actual))

    def trace(self, run: Callable[[], Any]) -> Trace:
        """The port's taps in one whole run."""
        with torch.no_grad(), recording(self.module, prefix=self.prefix) as trace:
            run()
        return trace

    def _adapter(self, path: str) -> Adapter:
        for pattern, adapter in self.adapters.items():
            if Names([(pattern, "")]).theirs(path) == "":
                return adapter
        return positional

    def _submodule(self, path: str) -> nn.Module:
        own = path.partition("#")[0].removeprefix(self.prefix).removeprefix(".")
        return self.module if own in ("", "(root)") else self.module.get_submodule(own)

    def _alone(self, tap: str, path: str, taps: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """The outputs of one of our layers on the reference's input, or None where it does not take that input."""
        inputs = _reference_inputs(taps, tap)
        if not inputs:
            return None
        args, kwargs = self._adapter(path)(inputs)
        try:
            with torch.no_grad():
                return outputs(self._submodule(path)(*args, **kwargs))
        except (TypeError, RuntimeError, ValueError):  # another signature: the layer needs an adapter
            return None

    def _rows(self, tap_path: str, given: Mapping[str, Tensor], taps: Mapping[str, Tensor]) -> list[Row]:
        theirs = self.names.theirs(tap_path)
        known = {suffix: t for suffix, t in given.items() if theirs + suffix in taps}
        alone = self._alone(theirs, tap_path, taps) if known else None
        rows = []
        for suffix, tensor in known.items():
            tap = theirs + suffix
            local = alone.get(suffix) if alone else None
            own = None if local is None else self.by(tap, taps[tap], local)
            rows.append(Row(tap, tap_path, self.by(tap, taps[tap], tensor), own))
        return rows

    def run(self, run: Callable[[], Any]) -> Divergence:
        """Run the port with `run()`, then each of its layers on the case's inputs."""
        taps = self.case.group("taps")
        found = Divergence()
        for tap in self.trace(run).taps:
            found.rows += self._rows(tap.path, tap.outputs, taps)
        seen = {row.tap for row in found.rows}
        found.untouched = [name for name in taps if ":in" not in name and name not in seen]
        return found


def bisect(
    case: Case,
    module: nn.Module,
    run: Callable[[], Any],
    *,
    rules: Sequence[tuple[str, str]] = (),
    **options: Any,
) -> Divergence:
    """`Bisector` in one call: `rules` are those of `Names`."""
    return Bisector(case, module, Names(rules), **options).run(run)
