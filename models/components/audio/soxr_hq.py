"""Rate conversion by soxr at its quality "HQ", which some references use; sounds as theirs need the same library."""

from __future__ import annotations

import math

import numpy as np
import soxr


def resample(samples: np.ndarray, rate: int, target: int) -> np.ndarray:
    """Samples [T] at another rate: float32 [ceil(T * (target / rate))], zeros behind where soxr gives fewer.

    librosa's rule of lengths: the ratio is rounded to a float before it multiplies.
    """
    if rate == target:
        return samples.astype(np.float32)
    found = soxr.resample(samples.astype(np.float32), rate, target, quality="soxr_hq")
    count = math.ceil(len(samples) * (target / rate))
    return np.pad(found[:count], (0, max(0, count - len(found))))
