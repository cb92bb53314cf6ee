"""Loudness after ITU-R BS.1770-4 for one channel, with the filters of R. Bristow-Johnson's cookbook."""

from __future__ import annotations

import math

import numpy as np
from scipy.signal import lfilter

BLOCK, OVERLAP = 0.4, 0.75  # seconds of a gating block, part of it that the next one shares
SILENT, BELOW = -70.0, 10.0  # LUFS under which a block counts for nothing; LU below the mean, likewise
OFFSET = -0.691
SHELF_DB, SHELF_HZ, SHELF_Q = 4.0, 1500.0, 1 / math.sqrt(2)
HIGH_PASS_HZ, HIGH_PASS_Q = 38.0, 0.5


def _shelf(rate: int) -> tuple[list[float], list[float]]:
    amplitude = 10 ** (SHELF_DB / 40)
    angle = 2 * math.pi * SHELF_HZ / rate
    slope = 2 * math.sqrt(amplitude) * math.sin(angle) / (2 * SHELF_Q)
    more, less, cos = amplitude + 1, amplitude - 1, math.cos(angle)
    up = [more + less * cos + slope, -2 * (less + more * cos), more + less * cos - slope]
    down = [more - less * cos + slope, 2 * (less - more * cos), more - less * cos - slope]
    return [amplitude * b for b in up], down


def _high_pass(rate: int) -> tuple[list[float], list[float]]:
    angle = 2 * math.pi * HIGH_PASS_HZ / rate
    alpha, cos = math.sin(angle) / (2 * HIGH_PASS_Q), math.cos(angle)
    return [(1 + cos) / 2, -(1 + cos), (1 + cos) / 2], [1 + alpha, -2 * cos, 1 - alpha]


def loudness(samples: np.ndarray, rate: int) -> float:
    """Integrated loudness in LUFS of samples [T]; -inf for silence or for less than a block."""
    weighted = samples.astype(np.float32)
    for b, a in (_shelf(rate), _high_pass(rate)):
        weighted = lfilter(b, a, weighted).astype(np.float32)
    step = BLOCK * (1 - OVERLAP)
    count = round((len(samples) / rate - BLOCK) / step) + 1
    ends = [(int(i * step * rate), int((i * step + BLOCK) * rate)) for i in range(count)]
    power = np.array([np.square(weighted[start:stop]).sum() / (BLOCK * rate) for start, stop in ends])
    power = power[power > 10 ** ((SILENT - OFFSET) / 10)]
    if not len(power):
        return -math.inf
    gated = power[power > power.mean() * 10 ** (-BELOW / 10)]
    return OFFSET + 10 * math.log10(gated.mean())


def levelled(samples: np.ndarray, rate: int, target: float = -27.0) -> np.ndarray:
    """The samples brought to `target` LUFS; silence stays."""
    found = loudness(samples, rate)
    return samples if math.isinf(found) else samples * np.float32(10 ** ((target - found) / 20))
