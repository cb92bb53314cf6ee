"""Counter-based uniform draws: u = f(seed, sub-sampler, position), vectorised, the same on every platform."""

from __future__ import annotations

import numpy as np

_STEP = np.array([0x9E3779B97F4A7C15], np.uint64)
_FIRST, _SECOND = np.array([[0xBF58476D1CE4E5B9], [0x94D049BB133111EB]], np.uint64)
_30, _27, _31, _11 = np.array([[30], [27], [31], [11]], np.uint64)


def mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's output function (Steele, Lea, Flood 2014): a bijection of uint64 with full avalanche."""
    x = x ^ (x >> _30)
    x *= _FIRST
    x ^= x >> _27
    x *= _SECOND
    x ^= x >> _31
    return x


def keys(seed: int, subs: int) -> np.ndarray:
    """[subs] uint64: where each sub-sampler's sequence starts. Seeds are taken modulo 2 ** 64."""
    start = mix(np.array([seed % 2**64], np.uint64) + _STEP)
    return mix(start ^ mix(np.arange(1, subs + 1, dtype=np.uint64) * _STEP))


def uniform(keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """float64 in [0, 1) with 53 random bits; `positions` (int64, >= 0) broadcasts against `keys`.

    Each key is a SplitMix64 generator's start and the position its step count.
    """
    x = mix(positions.view(np.uint64) * _STEP + keys)
    x >>= _11
    return x * 2.0**-53
