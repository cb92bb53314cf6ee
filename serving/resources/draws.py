"""Counter-based uniform draws: u = f(seed, sub-sampler, position), vectorised, the same on every platform."""

from __future__ import annotations

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's output function (Steele, Lea, Flood 2014): a bijection of uint64 with full avalanche."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def keys(seed: int, subs: int) -> np.ndarray:
    """[subs] uint64: where each sub-sampler's sequence starts. Seeds are taken modulo 2 ** 64."""
    start = mix(np.array([seed % 2**64], np.uint64) + _STEP)
    return mix(start ^ mix(np.arange(1, subs + 1, dtype=np.uint64) * _STEP))


def uniform(keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """float64 in [0, 1) with 53 random bits; `positions` (int64, >= 0) broadcasts against `keys`."""
    x = mix(mix(keys + positions.astype(np.uint64) * _STEP) + _STEP)
    return (x >> np.uint64(11)) * 2.0**-53
