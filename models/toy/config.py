"""Sizes of the toy's networks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToyConfig:
    """Everything that the modules need to know."""

    vocab: int = 64
    eos: int = 1
    width: int = 32
    layers: int = 2
    heads: int = 2
    max_tokens: int = 512
    samples: int = 4  # the codec makes so many of each token
    frame: int = 4  # the listener reads so many at a time
    memory: int = 16  # width of its state
    patch: int = 4  # side of a patch of the picture

    @property
    def head_dim(self) -> int:
        return self.width // self.heads
