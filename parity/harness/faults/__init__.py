"""Planted faults: the mistakes that ports really make, so that every gate can be shown to catch them.

`plantable(module, run)` finds every place of a network where a fault of the catalogue can be made; each is
planted for the length of a `with` block. Faults of code that is not a module (a chunker, a seed) wrap a
callable instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from parity.harness.faults.callables import (
    dropped_last_chunk,
    off_by_one_frame,
    off_by_one_position,
    planted,
    shared_seed,
)
from parity.harness.faults.functions import FUNCTIONS, calls, swapped
from parity.harness.faults.state import FINDERS, Plant

__all__ = [
    "CATALOGUE",
    "Planted",
    "dropped_last_chunk",
    "off_by_one_frame",
    "off_by_one_position",
    "plantable",
    "planted",
    "shared_seed",
    "uncaught",
]

CATALOGUE: Mapping[str, str] = {
    "wrong rope base": "rotary frequencies of another base",
    "missing scale": "an attention, or a module with a scale, runs with scale 1",
    "silu for gelu": "SiLU where GELU belongs, or GELU where SiLU does",
    "off-by-one position": "learned positions shifted by one",
    "transposed weight": "a square matrix loaded the other way round",
    "swapped gates": "gate and value, or an LSTM's input and forget gates, changed about",
    "wrong epsilon": "a norm's epsilon ten times too large",
    "dropped last chunk": "the tail of a stream never leaves the chunker",
    "off-by-one frame": "frames shifted by one",
    "shared seed": "every request draws with the seed 0",
    "wrong mask": "a causal mask forgotten, or put where none belongs",
    "double sqrt": "a square root taken twice",
    "norm without +1": "a norm's weight one too small: weight for 1 + weight",
}


class Planted(NamedTuple):
    """A fault that can be made at one module: `with planted.plant(): ...`."""

    fault: str
    path: str
    plant: Plant

    def __str__(self) -> str:
        return f"{self.fault} at {self.path or '(root)'}"


def plantable(module: nn.Module, run: Callable[[], Any] | None = None) -> list[Planted]:
    """Every fault that can be planted in a network, module by module.

    With `run`, which runs the network once, faults of the functions that modules call are found too:
    activations, attention, square roots, gates.
    """
    found = []
    called = calls(module, run) if run else {}
    for path, child in module.named_modules():
        found += [Planted(fault, path, plant) for fault, find in FINDERS if (plant := find(child))]
        for fault, (seen, names, swap) in FUNCTIONS.items():
            if seen & called.get(path, set()):
                found.append(Planted(fault, path, partial(swapped, child, names, swap)))
    return found


def uncaught(
    module: nn.Module, run: Callable[[], Any], gate: Callable[[], object], *, faults: set[str] | None = None
) -> list[Planted]:
    """The plantable faults that a gate lets through. `gate()` is true when it passes; it must pass without a fault."""
    if not gate():
        raise AssertionError("the gate fails without any fault: it cannot show that it catches one")
    missed = []
    for found in plantable(module, run):
        if faults is None or found.fault in faults:
            with found.plant():
                if gate():
                    missed.append(found)
    return missed
