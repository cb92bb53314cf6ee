"""What is sent: items in an order that the seed decides, the same for every target and every repeat."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """Input of a live session: samples float32 [T] at `rate`, appended to `port` every `every` seconds."""

    samples: np.ndarray
    rate: int
    every: float = 0.08
    port: str = "audio_in"

    def pieces(self) -> Iterator[np.ndarray]:
        """The samples in order, those of `every` seconds at a time; the last piece may be shorter."""
        step = max(1, round(self.every * self.rate))
        yield from (self.samples[i : i + step] for i in range(0, len(self.samples), step))


@dataclass(frozen=True, slots=True)
class Item:
    """A request: the text to speak or answer, or a clip and what is spoken in it ("" if unknown)."""

    id: str
    text: str
    audio: bytes | None = None  # a WAV file
    seconds: float | None = None  # of that file
    image: bytes | None = None  # a PNG file
    stream: Stream | None = None
    part: str = ""  # of a mixed workload
    body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workload:
    """Distinct items for a route."""

    name: str
    route: str
    items: Sequence[Item]
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.items or len({item.id for item in self.items}) < len(self.items):
            raise ValueError(f"workload {self.name!r} needs items with distinct ids")

    def stream(self) -> Iterator[Item]:
        """Items without end: each pass is a new seeded order of all of them."""
        rng = random.Random(self.seed)
        while True:
            yield from rng.sample(list(self.items), len(self.items))
