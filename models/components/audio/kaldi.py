"""Kaldi's log filter banks as it computes them by default, without dither, for sound at 16 kHz."""

from __future__ import annotations

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW, SHIFT, N_FFT, RATE = 400, 160, 512, 16_000
LOWEST_HZ = 20.0
PREEMPHASIS = 0.97


@cache
def banks(n_mels: int) -> Tensor:
    """Triangles that are even in Kaldi's mel, 1127 ln(1 + f / 700), from 20 Hz to 8 kHz: [n_mels, 257]."""
    low, high = (1127.0 * math.log(1.0 + hz / 700.0) for hz in (LOWEST_HZ, RATE / 2))
    delta = (high - low) / (n_mels + 1)
    index = torch.arange(n_mels)[:, None]
    left, centre, right = low + index * delta, low + (index + 1.0) * delta, low + (index + 2.0) * delta
    bins = (1127.0 * (1.0 + RATE / N_FFT * torch.arange(N_FFT / 2) / 700.0).log())[None]
    triangles = torch.min((bins - left) / (centre - left), (right - bins) / (right - centre)).clamp(min=0)
    return F.pad(triangles, (0, 1))


def fbank(samples: Tensor, n_mels: int) -> Tensor:
    """Samples [T] to the log of the power in each mel band [1 + (T - 400) // 160, n_mels].

    Frames of 25 ms every 10 ms, only whole ones; each without its mean, preemphasised, under Povey's window.
    """
    frames = samples.unfold(0, WINDOW, SHIFT)
    frames = frames - frames.mean(1, keepdim=True)
    before = torch.cat([frames[:, :1], frames[:, :-1]], 1)
    window = torch.hann_window(WINDOW, periodic=False, device=samples.device).pow(0.85)
    shaped = F.pad((frames - PREEMPHASIS * before) * window, (0, N_FFT - WINDOW))
    power = torch.fft.rfft(shaped).abs().pow(2.0)
    smallest = torch.finfo(torch.float32).eps
    return torch.mm(power, banks(n_mels).to(samples.device).T).clamp(min=smallest).log()
