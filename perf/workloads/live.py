"""Live sessions: sound that is spoken while the server listens."""

from __future__ import annotations

import io

import numpy as np
import soundfile

from perf.workloads.base import Item, Stream, Workload
from perf.workloads.clips import recordings

RATE = 16_000


def sessions(
    n: int = 32, seed: int = 0, seconds: float = 4.0, rate: int = RATE, every: float = 0.08, port: str = "audio_in"
) -> Workload:
    """Live: `n` distinct gliding tones of `seconds` at `rate`, appended to `port` every `every` seconds."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    items = []
    for i in range(n):
        sound = np.sin(2 * np.pi * (rng.uniform(120, 400) * t + rng.uniform(10, 60) * t**2)).astype(np.float32)
        items.append(Item(f"live-{i:04d}", "", seconds=seconds, stream=Stream(0.3 * sound, rate, every, port)))
    return Workload(f"sessions of {seconds:g} s, a piece every {1000 * every:g} ms", "live", items, seed)


def spoken(seed: int = 0, every: float = 0.1) -> Workload:
    """Realtime: the project's recordings as if they were being spoken, committed at their end."""
    items = []
    for item in recordings(seed).items:
        samples, rate = soundfile.read(io.BytesIO(item.audio or b""), dtype="float32")
        items.append(Item(item.id, item.text, seconds=item.seconds, stream=Stream(samples, rate, every)))
    return Workload(f"recordings as they are spoken, a piece every {1000 * every:g} ms", "realtime", items, seed)
