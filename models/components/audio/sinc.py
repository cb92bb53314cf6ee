"""Rate conversion by a Hann-windowed sinc, torchaudio's formula: six zero crossings a side, cut off at 0.99 of Nyquist.

A convolution on whatever device the sound is, and the one that some references call; others call soxr.
"""

from __future__ import annotations

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

CROSSINGS, ROLLOFF = 6, 0.99


@cache
def kernels(down: int, up: int) -> tuple[Tensor, int]:
    """One filter an output phase, float32 [up, 1, taps], computed in float64; and how far each reaches back."""
    base = min(down, up) * ROLLOFF
    width = math.ceil(CROSSINGS * down / base)
    inputs = torch.arange(-width, width + down, dtype=torch.float64)[None, None] / down
    at = torch.arange(0, -up, -1)[:, None, None] / up + inputs
    at = (at * base).clamp(-CROSSINGS, CROSSINGS)
    window = torch.cos(at * math.pi / CROSSINGS / 2) ** 2
    at = at * math.pi
    sinc = torch.where(at == 0, torch.ones_like(at), at.sin() / at)
    return (sinc * (window * (base / down))).to(torch.float32), width


def resample(samples: Tensor, rate: int, target: int) -> Tensor:
    """Samples [..., T] at another rate: [..., ceil(T * target / rate)]."""
    if rate == target:
        return samples
    shared = math.gcd(rate, target)
    down, up = rate // shared, target // shared
    filters, width = kernels(down, up)
    rows = samples.reshape(-1, samples.shape[-1])
    padded = F.pad(rows, (width, width + down))
    found = F.conv1d(padded[:, None], filters.to(samples.device), stride=down).transpose(1, 2).flatten(1)
    count = math.ceil(up * samples.shape[-1] / down)
    return found[:, :count].reshape(*samples.shape[:-1], count)
