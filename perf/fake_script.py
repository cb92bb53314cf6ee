"""What the scripted server does with a request."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Fault = Literal["error", "drop", "hang", "stop", "second_header"]


@dataclass(frozen=True, slots=True)
class Script:
    """One answer. Times are seconds; `first` counts from when the request is served."""

    first: float = 0.1
    gaps: Sequence[float] = (0.05, 0.05, 0.05, 0.05)  # one more chunk after each
    size: int = 2400  # samples a chunk, or tokens a chunk
    rate: int = 24_000
    header: float | None = None  # a bare WAV header or a role-only delta, this long before
    repeats: frozenset[int] = frozenset()  # these chunks are sent twice
    fault: Fault | None = None
    at: int = 1  # the chunk that the fault comes instead of
    status: int = 200
    usage: Literal["none", "total", "running"] = "total"  # how tokens are reported
    spoil: int = 0  # another value gives other content
    stamp: bool = False  # a chunk starts with the moment it was written: a double, time.monotonic()

    @property
    def moments(self) -> list[float]:
        return [self.first, *self.gaps]


def line(value: dict[str, Any]) -> bytes:
    """A line of NDJSON."""
    return json.dumps(value).encode() + b"\n"


def array(rng: random.Random, items: int) -> dict[str, Any]:
    """An output of `items` items of three bytes each, as `/generate` writes it."""
    return {"dtype": "uint8", "shape": [items, 3], "data": base64.b64encode(rng.randbytes(3 * items)).decode()}
