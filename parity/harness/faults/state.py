"""Faults of what a module holds: weights, buffers, scales, epsilons. Each finder gives a plant, or None
where none fits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

Plant = Callable[[], AbstractContextManager[None]]
Find = Callable[[nn.Module], Plant | None]


@contextmanager
def edited(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """The tensor holds `change(tensor)` inside the block."""
    before = tensor.detach().clone()
    with torch.no_grad():
        tensor.copy_(change(before))
    try:
        yield
    finally:
        with torch.no_grad():
            tensor.copy_(before)


@contextmanager
def _set(module: nn.Module, name: str, value: Any) -> Iterator[None]:
    with mock.patch.object(module, name, value):
        yield


def _swap_rows(step: int, tensor: Tensor) -> Tensor:
    return torch.cat([tensor[step : 2 * step], tensor[:step], tensor[2 * step :]])


def _rope(module: nn.Module) -> Plant | None:
    frequencies = getattr(module, "inv_freq", None)
    return partial(edited, frequencies, lambda t: t**1.1) if isinstance(frequencies, Tensor) else None


def _scale(value: Callable[[float], float]) -> Find:
    def find(module: nn.Module) -> Plant | None:
        for name in ("scale", "scaling", "softmax_scale", "embed_scale"):
            held = getattr(module, name, None)
            if isinstance(held, float) and value(held) != held:
                return partial(_set, module, name, value(held))
        return None

    return find


def _positions(module: nn.Module) -> Plant | None:
    own = itertools.chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False))
    for name, tensor in own:
        if "pos" in name and tensor.ndim >= 2 and tensor.is_floating_point():
            return partial(edited, tensor, lambda t: t.roll(1, dims=-2))
    return None


def _position_table(module: nn.Module) -> Plant | None:
    for name, child in module.named_children():
        if isinstance(child, nn.Embedding) and "pos" in name:
            return partial(edited, child.weight, lambda t: t.roll(1, dims=0))
    return None


def _transposed(module: nn.Module) -> Plant | None:
    if not isinstance(module, nn.Linear) or module.in_features != module.out_features:
        return None
    if torch.equal(module.weight, module.weight.T):
        return None
    return partial(edited, module.weight, lambda t: t.T)


def _recurrent_gates(module: nn.Module) -> Plant | None:
    if isinstance(module, nn.LSTM | nn.GRU):
        weight: Tensor = module.get_parameter("weight_ih_l0")
    elif isinstance(module, nn.LSTMCell | nn.GRUCell):
        weight = module.weight_ih
    else:
        return None
    return partial(edited, weight, partial(_swap_rows, module.hidden_size))


@contextmanager
def _exchange(module: nn.Module, one: str, other: str) -> Iterator[None]:
    first, second = getattr(module, one), getattr(module, other)
    setattr(module, one, second)
    setattr(module, other, first)
    try:
        yield
    finally:
        setattr(module, one, first)
        setattr(module, other, second)


def _split_gates(module: nn.Module) -> Plant | None:
    names = ("gate_proj", "up_proj")
    both = all(isinstance(getattr(module, name, None), nn.Module) for name in names)
    return partial(_exchange, module, *names) if both else None


def _epsilon(module: nn.Module) -> Plant | None:
    for name in ("eps", "variance_epsilon"):
        held = getattr(module, name, None)
        if isinstance(held, float):
            return partial(_set, module, name, held * 10)
    return None


def _norm_weight(module: nn.Module) -> Plant | None:
    weight = getattr(module, "weight", None)
    if "Norm" not in type(module).__name__ or not isinstance(weight, Tensor):
        return None
    return partial(edited, weight, lambda t: t - 1)


def _mask_buffer(module: nn.Module) -> Plant | None:
    for name, held in module.named_buffers(recurse=False):
        if "mask" in name and not held.is_sparse:
            return partial(edited, held, torch.zeros_like)
    return None


FINDERS: tuple[tuple[str, Find], ...] = (
    ("wrong rope base", _rope),
    ("missing scale", _scale(lambda _: 1.0)),
    ("double sqrt", _scale(lambda held: math.sqrt(abs(held)))),
    ("off-by-one position", _positions),
    ("off-by-one position", _position_table),
    ("transposed weight", _transposed),
    ("swapped gates", _recurrent_gates),
    ("swapped gates", _split_gates),
    ("wrong epsilon", _epsilon),
    ("norm without +1", _norm_weight),
    ("wrong mask", _mask_buffer),
)
