"""Rate conversion as FFmpeg's swresample does it by default, so that a port hears what its reference heard.

A polyphase sinc with a Kaiser window (beta 9), 32 taps at the lower rate, cut off at 0.97 of the target's
Nyquist frequency, normalised so that the first phase has unit gain at 0 Hz. The input is mirrored at its
ends: at the start about its first sample, at the end after its last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import ceil, gcd

import numpy as np
from scipy.signal import upfirdn

TAPS, CUTOFF, BETA = 32, 0.97, 9.0


@cache
def phases(up: int, down: int) -> np.ndarray:
    """The filters for rate * up / down: float64 [up, taps]; phase p peaks at (taps - 1) // 2 + p / up."""
    factor = min(up * CUTOFF / down, 1.0)
    taps = ceil(TAPS / factor)
    taps += taps % 2
    x = (np.arange(taps)[None] - (taps - 1) // 2 - np.arange(up)[:, None] / up) * factor
    window = np.i0(BETA * np.sqrt(np.maximum(1 - (2 * x / (factor * taps)) ** 2, 0)))
    bank = np.sinc(x) * window
    return bank / bank[0].sum()


def resample(samples: np.ndarray, rate: int, target: int) -> np.ndarray:
    """Samples [T] at another rate: float32 [ceil(T * target / rate)].

    swresample adds up in float32, in an order that depends on the processor; this adds up in float64, which
    leaves a difference of about 6e-8.
    """
    if rate == target:
        return samples.astype(np.float32)
    shared = gcd(rate, target)
    bank = phases(target // shared, rate // shared)
    count = ceil(len(samples) * target / rate)
    return _convolve(samples, bank, rate // shared, count).astype(np.float32) if count else samples[:0]


def resample_part(
    read: Callable[[int, int], np.ndarray], length: int, rate: int, target: int, start: int, stop: int
) -> np.ndarray:
    """`resample(read(0, length), rate, target)[start:stop]`, bit for bit, of as few samples as that takes."""
    shared = gcd(rate, target)
    up, down = target // shared, rate // shared
    taps = phases(up, down).shape[1] if up != down else 0
    margin = (2 * taps // down + 2) * down  # of whole output steps, so that the filters' phases agree
    first = max(0, start // up * down - margin)
    last = min(length, -(-stop * down // up) + margin)
    at = start - first * up // down
    return resample(read(first, last), rate, target)[at : at + stop - start]


def _convolve(samples: np.ndarray, bank: np.ndarray, down: int, count: int) -> np.ndarray:
    up, taps = bank.shape
    after = taps - 1 - (taps - 1) // 2
    before = taps + -(taps + after) % down  # a whole number of output steps, and no less than the filter needs
    padded = _mirrored(samples.astype(np.float64), before, taps)
    out = upfirdn(bank[:, ::-1].T.ravel(), padded, up, down)
    first = (before + after) * up // down
    return out[first : first + count]


def _mirrored(x: np.ndarray, before: int, after: int) -> np.ndarray:
    padded = np.pad(x, (before, 0), mode="reflect" if len(x) > 1 else "edge")
    return np.pad(padded, (0, after), mode="symmetric")


def mono(samples: np.ndarray) -> np.ndarray:
    """The mean of the channels of [C, T]: [T]."""
    return samples[0] if len(samples) == 1 else samples.mean(axis=0, dtype=np.float32)
