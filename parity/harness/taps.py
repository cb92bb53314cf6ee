"""Taps: what every module of a network took and gave, by module path, in execution order.

One mechanism records the reference and observes the port. A module is listed when it *finishes*, so
children come before their parent; its second call is `path#2`. Where the two sides name things differently,
one `Names` table says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

Select = Callable[[str, nn.Module], bool]


def flatten(value: Any, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of nested tuples, lists and mappings by path: "[0]", "[1].hidden"; a lone tensor has path
    "".
    """
    if isinstance(value, Tensor):
        return {prefix: value}
    if isinstance(value, Mapping):
        items: Iterable[tuple[str, Any]] = ((f".{name}", item) for name, item in value.items())
    elif isinstance(value, tuple | list):
        items = ((f"[{index}]", item) for index, item in enumerate(value))
    else:
        return {}
    return {name: t for suffix, item in items for name, t in flatten(item, prefix + suffix).items()}


def outputs(value: Any) -> dict[str, Tensor]:
    """`flatten`, where an output with a single tensor in it has the path "" whatever it is wrapped in."""
    found = flatten(value)
    return {"": next(iter(found.values()))} if len(found) == 1 else found


@dataclass(frozen=True)
class Tap:
    """One call of one module. Tensors are detached copies: in-place changes made later do not reach them."""

    path: str  # module path, with "#n" from the second call on
    inputs: Mapping[str, Tensor]  # "[0]", "[1]", ".mask"
    outputs: Mapping[str, Tensor]

    @property
    def module(self) -> str:
        """The path without the number of the call."""
        return self.path.partition("#")[0]

    def named(self) -> dict[str, Tensor]:
        """The outputs by tap name: "encoder.conv1", or "attn[0]" and "attn[1]" where there are several."""
        return {self.path + suffix: tensor for suffix, tensor in self.outputs.items()}

    def named_inputs(self) -> dict[str, Tensor]:
        """The inputs by tap name: "encoder.conv1:in[0]"."""
        return {f"{self.path}:in{suffix}": tensor for suffix, tensor in self.inputs.items()}


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@dataclass
class Trace:
    """Taps in execution order."""

    taps: list[Tap] = field(default_factory=list)

    def tensors(self) -> dict[str, Tensor]:
        """Every output by tap name, in execution order."""
        return {name: tensor for tap in self.taps for name, tensor in tap.named().items()}

    def inputs(self) -> dict[str, Tensor]:
        """Every input by tap name, in execution order."""
        return {name: tensor for tap in self.taps for name, tensor in tap.named_inputs().items()}


class _Recorder:
    def __init__(self, trace: Trace, path: str) -> None:
        self.trace, self.path, self.calls = trace, path, 0
        self.open: list[dict[str, Tensor]] = []  # inputs of calls that have not returned

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        # Copied before the call: a module may change its inputs in place.
        self.open.append(_copies({**flatten(args), **flatten(kwargs)}))

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        self.calls += 1
        path = self.path if self.calls == 1 else f"{self.path}#{self.calls}"
        self.trace.taps.append(Tap(path, self.open.pop(), _copies(outputs(output))))


@contextmanager
def recording(module: nn.Module, *, prefix: str = "", select: Select | None = None) -> Iterator[Trace]:
    """Record every call of the module's submodules, and of itself, made inside the block.

    `prefix` goes before each path, `select(path, module)` keeps some. The root's own path is the prefix, or
    "(root)". Hooks see `module(...)` calls only: a direct `module.forward(...)` leaves no tap.
    """
    trace, handles = Trace(), []
    for name, child in module.named_modules():
        path = ".".join(part for part in (prefix, name) if part) or "(root)"
        if select is None or select(path, child):
            recorder = _Recorder(trace, path)
            handles.append(child.register_forward_pre_hook(recorder.enter, with_kwargs=True))
            handles.append(child.register_forward_hook(recorder.leave, with_kwargs=True))
    try:
        yield trace
    finally:
        for handle in handles:
            handle.remove()


class Names:
    """A table from the port's module paths to the reference's.

    Rules are (ours, theirs) patterns; `*` stands for one part of a path and is carried over. A rule also
    renames all below it. The first rule that fits is used; a path that none fits keeps its name.
    """

    def __init__(self, rules: Sequence[tuple[str, str]] = ()) -> None:
        self.rules = [(self._compile(ours), theirs) for ours, theirs in rules]

    @staticmethod
    def _compile(pattern: str) -> re.Pattern[str]:
        parts = [r"([^.#\[:]+)" if part == "*" else re.escape(part) for part in pattern.split(".")]
        return re.compile(r"\.".join(parts) + r"(?=$|[.#\[:])")

    def theirs(self, ours: str) -> str:
        """The reference's name of one of our taps."""
        for pattern, target in self.rules:
            if found := pattern.match(ours):
                stars = iter(found.groups())
                renamed = ".".join(next(stars) if part == "*" else part for part in target.split("."))
                return renamed + ours[found.end() :]
        return ours
