"""Functions of tensors that a node names (`Node.compiles`), compiled for each bucket before readiness.

A whole `launch` is not compiled: attention plans on the host where each row's tokens lie, which changes at every
step. What is pure is named, and compiled by `torch.compile` at static shapes, once for each shape that the node's
buckets give it. A shape that none of them gave runs uncompiled, and is counted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from operator import attrgetter
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from serving.core.contract import Node
from serving.errors import SetupError

log = logging.getLogger("toolkit.compile")
Function = Callable[..., Any]
OPTIONS = {
    "guard_filter_fn": torch.compiler.skip_all_guards_unsafe,  # `Compiled` looks at all that may change: shapes
    "cpp.dynamic_threads": True,  # lanes share the cores, now by one, now by another number of threads
}


class Compiled:
    """Stands for a function of tensors. While `warming` it is compiled for each new shape that it is called with."""

    def __init__(self, name: str, run: Function, allow_eager: bool) -> None:
        self.name, self.run, self.allow_eager = name, run, allow_eager
        self.warming = False
        self.seconds = 0.0  # spent on compiling, the first run of each included
        self.misses = 0  # calls, after warming, with a shape that was not compiled
        self._made: dict[tuple[Any, ...], Function] = {}

    def __call__(self, *args: Any) -> Any:
        shape = tuple(map(_shape, args))
        made = self._made.get(shape)
        if made is not None:
            return made(*args)
        if not self.warming:
            self.misses += 1
            return self.run(*args)
        return self._compile(shape, args)

    def _compile(self, shape: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
        """A compilation of its own for the shape, which no other can take the place of."""
        began = perf_counter()
        try:
            made: Function = torch.compile(  # type: ignore[call-overload]  # whose overloads lack the first two
                self.run, isolate_recompiles=True, recompile_limit=1, fullgraph=True, dynamic=False, options={**OPTIONS}
            )
            found = made(*args)
        except Exception as error:
            if not self.allow_eager:
                raise SetupError(
                    f"{self.name} cannot be compiled: {_why(error)} Use capture: static, or allow_eager: true "
                    "to run it uncompiled.",
                    param="capture",
                ) from error
            log.warning("%s runs uncompiled: %s", self.name, _why(error))
            made = self.run
            found = made(*args)
        self.seconds += perf_counter() - began
        self._made[shape] = made
        return found


def install(node: Node, allow_eager: bool) -> list[Compiled]:
    """Put a `Compiled` in the place of each function that the node names; a module's stands in its `forward`."""
    return [_replace(node, path, allow_eager) for path in node.compiles]


def _replace(node: Node, path: str, allow_eager: bool) -> Compiled:
    before, _, name = path.rpartition(".")
    owner: Any = attrgetter(before)(node) if before else node
    if isinstance(getattr(owner, name), nn.Module):
        owner, name = getattr(owner, name), "forward"
    found = getattr(owner, name)
    if not isinstance(found, Compiled):  # else another node has named it too
        found = Compiled(f"{node.name}.{path}", found, allow_eager)
        setattr(owner, name, found)
    return found


def check(key: str, nodes: Sequence[Node], numerics: str, device: str) -> None:
    """Refuse what cannot be compiled here: `SetupError` says why."""
    if not any(node.compiles and node.buckets for node in nodes):
        raise SetupError(f"{key}, run like this, has nothing to compile: use capture: static.", param="capture")
    if numerics == "invariant":
        raise SetupError(
            "What is compiled gives a row other bits at another place in a batch, so numerics cannot be invariant: "
            "use capture: static.",
            param="capture",
        )
    if torch.device(device).type != "cpu":
        raise SetupError(f"capture: compiled is for the CPU, not for {device}: use static.", param="capture")
    if compiler() is None:
        raise SetupError(
            "capture: compiled needs a C++ compiler, and there is none: install g++ (the package g++ of Debian and "
            "Ubuntu, gcc-c++ of Fedora), or use capture: static.",
            param="capture",
        )


def compiler() -> str | None:
    """The C++ compiler that torch would use."""
    from torch._inductor import cpp_builder, exc  # takes seconds to import

    try:
        return cpp_builder.get_cpp_compiler()
    except exc.InvalidCxxCompiler:
        return None


def _shape(value: Any) -> Any:
    """All that a compilation depends on."""
    return (value.shape, value.stride(), value.dtype) if isinstance(value, Tensor) else value


def _why(error: Exception) -> str:
    """What it says, up to advice and traces."""
    lines = (line.strip() for line in str(error).splitlines())
    told = [line.removeprefix("Developer debug context: ") for line in lines if line and not line.startswith("Hint:")]
    return " ".join(f"{line.rstrip('.')}." for line in told[:3]) or f"{type(error).__name__}."
