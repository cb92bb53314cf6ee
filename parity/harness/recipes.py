"""Checkpoint recipes: a tiny random checkpoint as a rule instead of as bytes, rebuilt alike on both sides.

Every parameter and buffer is drawn from one seeded generator in sorted order of names, so that a layer that
was never loaded, or a buffer left at its default, shows. Draws are Philox's raw words scaled by exact
operations: numpy fixes that stream of words, while `torch.randn` and numpy's own normals may change between
builds.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ROOT_3 = math.sqrt(3.0)  # a uniform variable on [-sqrt 3, sqrt 3] has unit variance


class RecipeMismatch(Exception):
    """The rebuilt checkpoint is not the one that the recorder had."""


@dataclass(frozen=True)
class Spec:
    """One tensor: `uniform` with this mean and standard deviation, or `integer` in [0, scale)."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    distribution: str = "uniform"
    mean: float = 0.0
    scale: float = 1.0

    def draw(self, words: np.random.Philox) -> Tensor:
        """The tensor, from the next raw words of the generator."""
        raw = words.random_raw(math.prod(self.shape))
        if self.distribution == "integer":
            values: np.ndarray = (raw % np.uint64(self.scale)).astype(np.int64)
        else:
            centred = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0  # [-1, 1)
            values = self.mean + self.scale * ROOT_3 * centred
        return torch.from_numpy(values.reshape(self.shape)).to(getattr(torch, self.dtype))

    def draw_from(self, seed: int) -> Tensor:
        """The tensor alone, from a seed of its own: inputs and noise."""
        return self.draw(np.random.Philox(seed))


def default_spec(name: str, tensor: Tensor) -> Spec:
    """Unit gain for matrices and kernels, scales of norms around one, everything else around zero."""
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if not tensor.dtype.is_floating_point:
        return Spec(shape, dtype, "integer", 0.0, 2.0)
    if tensor.ndim >= 2:
        return Spec(shape, dtype, "uniform", 0.0, round(max(tensor[0].numel(), 1) ** -0.5, 6))
    centre = 1.0 if name.endswith(("weight", "running_var")) else 0.0
    return Spec(shape, dtype, "uniform", centre, 0.2)


def digest(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over names, dtypes, shapes and bytes, in sorted order of names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


@dataclass(frozen=True)
class Recipe:
    """A checkpoint as a rule: `build()` gives one state dict everywhere, or raises `RecipeMismatch`."""

    seed: int
    tensors: Mapping[str, Spec]
    sha256: str = ""
    ties: Mapping[str, str] = field(default_factory=dict)  # name -> the name whose tensor it is

    def _draw(self) -> dict[str, Tensor]:
        words = np.random.Philox(self.seed)
        drawn = {name: self.tensors[name].draw(words) for name in sorted(self.tensors)}
        return {**drawn, **{name: drawn[source] for name, source in self.ties.items()}}

    def build(self) -> dict[str, Tensor]:
        """The state dict, checked against the recorded sha256."""
        state = self._draw()
        if self.sha256 and digest(state) != self.sha256:
            raise RecipeMismatch(f"seed {self.seed} gives {digest(state)[:12]}, recorded {self.sha256[:12]}")
        return state

    def sealed(self) -> Recipe:
        """The recipe with the sha256 of what it gives."""
        return Recipe(self.seed, self.tensors, digest(self._draw()), self.ties)

    def to_json(self) -> dict[str, Any]:
        """For the manifest; every tensor is spelled out, so that a reader needs none of this code."""
        rows = {name: [list(s.shape), s.dtype, s.distribution, s.mean, s.scale] for name, s in self.tensors.items()}
        return {"seed": self.seed, "sha256": self.sha256, "tensors": rows, "ties": dict(self.ties)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        """What `to_json` wrote."""
        specs = {name: Spec(tuple(shape), *rest) for name, (shape, *rest) in data["tensors"].items()}
        return cls(data["seed"], specs, data["sha256"], data.get("ties", {}))


def named_state(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and persistent buffer by its state-dict name."""
    return {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}


def _ties(state: Mapping[str, Tensor]) -> dict[str, str]:
    first: dict[int, str] = {}
    ties = {}
    for name in sorted(state):
        owner = first.setdefault(state[name].data_ptr() or id(state[name]), name)
        if owner != name and state[owner].shape == state[name].shape and state[name].numel():
            ties[name] = owner
    return ties


def recipe_for(
    module: nn.Module, seed: int, *, overrides: Mapping[str, Spec] | None = None, keep: Iterable[str] = ()
) -> Recipe:
    """A recipe for all parameters and persistent buffers of a module.

    `overrides` replaces the default distribution of a name. Names in `keep` are left out: state that is a
    formula of the architecture, such as a causal mask, and that the port computes too.
    """
    state = {name: value for name, value in named_state(module).items() if name not in set(keep)}
    ties = _ties(state)
    chosen = dict(overrides or {})
    specs = {name: chosen.get(name) or default_spec(name, state[name]) for name in sorted(state) if name not in ties}
    return Recipe(seed, specs, "", ties).sealed()
