"""Faults of the torch functions that a module's own code calls: its activation, attention, square root,
gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

Swap = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class _Direct(TorchFunctionMode):
    """Swaps the torch functions that one module calls itself; those of its children stay as they are."""

    def __init__(self, names: frozenset[str], swap: Swap) -> None:
        super().__init__()
        self.names, self.swap, self.depth = names, swap, 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if self.depth == 0 and getattr(func, "__name__", "") in self.names:
            return self.swap(func, args, dict(kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextmanager
def swapped(module: nn.Module, names: frozenset[str], swap: Swap) -> Iterator[None]:
    mode = _Direct(names, swap)

    def enter(*_: Any) -> None:
        mode.depth += 1

    def leave(*_: Any) -> None:
        mode.depth -= 1

    def forward(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return real(*args, **kwargs)

    real = module.forward
    children = [child for child in module.modules() if child is not module]
    handles = [child.register_forward_pre_hook(enter) for child in children]
    handles += [child.register_forward_hook(leave, always_call=True) for child in children]
    try:
        with mock.patch.object(module, "forward", forward):
            yield
    finally:
        for handle in handles:
            handle.remove()


class _Probe(TorchFunctionMode):
    """Which torch functions each module calls itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.called: dict[str, set[str]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.stack:
            name = getattr(func, "__name__", "")
            parts = f"{name} in {len(result)}" if isinstance(result, tuple | list) else name
            self.called.setdefault(self.stack[-1], set()).add(parts)
        return result


def calls(module: nn.Module, run: Callable[[], Any]) -> dict[str, set[str]]:
    """Module path -> names of the torch functions that its own code calls during `run()`; "chunk in 2" for parts."""
    probe, handles = _Probe(), []
    for path, child in module.named_modules():
        handles.append(child.register_forward_pre_hook(lambda *_, path=path: probe.stack.append(path)))
        handles.append(child.register_forward_hook(lambda *_: (probe.stack.pop(), None)[1]))
    try:
        with torch.no_grad(), probe:
            run()
    finally:
        for handle in handles:
            handle.remove()
    return probe.called


def _attention_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _unscaled(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(**{**_attention_arguments(args, kwargs), "scale": 1.0})


def _misbehaving_mask(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = _attention_arguments(args, kwargs)
    masked = given.get("attn_mask") is not None or given.get("is_causal", False)
    return func(**{**given, "attn_mask": None, "is_causal": not masked})


def _other_activation(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return F.silu(args[0]) if func.__name__ == "gelu" else F.gelu(args[0])


def _twice(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs).abs().sqrt()


def _gates_about(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func.__name__ == "glu":
        dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        return func(torch.cat(args[0].chunk(2, dim)[::-1], dim), dim)
    parts = func(*args, **kwargs)
    return parts[::-1] if len(parts) == 2 else parts  # three are a query, a key and a value


class Function(NamedTuple):
    """A fault of a function: what a module must be seen to call, the functions to swap, and what for."""

    seen: frozenset[str]
    names: frozenset[str]
    swap: Swap


def _of(swap: Swap, *seen: str) -> Function:
    return Function(frozenset(seen), frozenset(name.partition(" ")[0] for name in seen), swap)


FUNCTIONS: Mapping[str, Function] = {
    "missing scale": _of(_unscaled, "scaled_dot_product_attention"),
    "wrong mask": _of(_misbehaving_mask, "scaled_dot_product_attention"),
    "silu for gelu": _of(_other_activation, "gelu", "silu"),
    "double sqrt": _of(_twice, "sqrt", "rsqrt"),
    "swapped gates": _of(_gates_about, "chunk in 2", "glu"),
}
