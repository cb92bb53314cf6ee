"""Mel filter banks and Whisper's log-mel spectrogram, by formula: no library version can change them."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

BREAK_HZ = 1000.0  # Slaney's scale: linear below, logarithmic above
HZ_PER_MEL = 200 / 3
BREAK_MEL = BREAK_HZ / HZ_PER_MEL
LOG_STEP = np.log(6.4) / 27


def hz_to_mel(hz: np.ndarray) -> np.ndarray:
    """Slaney's mel scale (Auditory Toolbox, 1998): 15 mel at 1 kHz, then 27 mel to each factor of 6.4."""
    linear = hz / HZ_PER_MEL
    return np.where(hz < BREAK_HZ, linear, BREAK_MEL + np.log(np.maximum(hz, BREAK_HZ) / BREAK_HZ) / LOG_STEP)


def mel_to_hz(mel: np.ndarray) -> np.ndarray:
    """The inverse of `hz_to_mel`."""
    return np.where(
        mel < BREAK_MEL,
        mel * HZ_PER_MEL,
        BREAK_HZ * np.exp(LOG_STEP * (np.maximum(mel, BREAK_MEL) - BREAK_MEL)),
    )


@cache
def slaney_filters(n_mels: int, n_fft: int, rate: int, high: float | None = None) -> Tensor:
    """Triangles of equal area, evenly spaced in mel from 0 Hz to `high` (rate/2): float32 [n_mels, n_fft // 2 + 1]."""
    bins = np.linspace(0, rate / 2, n_fft // 2 + 1)
    edges = mel_to_hz(np.linspace(0, hz_to_mel(np.array(high or rate / 2)), n_mels + 2))
    width = np.diff(edges)
    slopes = edges[:, None] - bins[None, :]
    rising, falling = -slopes[:-2] / width[:-1, None], slopes[2:] / width[1:, None]
    area = 2 / (edges[2:] - edges[:-2])
    triangles = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    return torch.from_numpy((triangles * area[:, None]).astype(np.float32))


def log_mel(samples: Tensor, n_mels: int, *, rate: int = 16_000, n_fft: int = 400, hop: int = 160) -> Tensor:
    """Whisper's features of float32 samples [T]: [n_mels, T // hop], about -1 to 1.

    Power spectrum with a periodic Hann window and reflected ends, the last frame dropped; mel; log10 floored
    at 1e-10, then at 8 below the loudest value of the whole input; (x + 4) / 4.
    """
    ends = (n_fft // 2, n_fft // 2)
    padded = F.pad(samples[None], ends, mode="reflect")[0]
    log = mel_levels(padded[: len(samples) // hop * hop + n_fft - hop], n_mels, rate=rate, n_fft=n_fft, hop=hop)
    return levelled(log, float(log.max()))


def mel_levels(samples: Tensor, n_mels: int, *, rate: int, n_fft: int, hop: int) -> Tensor:
    """log10 of mel power, floored at 1e-10: [n_mels, (T - n_fft) // hop + 1], the whole frames of samples [T]."""
    window = torch.hann_window(n_fft)
    power = torch.stft(samples, n_fft, hop, window=window, center=False, return_complex=True).abs() ** 2
    return (slaney_filters(n_mels, n_fft, rate) @ power).clamp(min=1e-10).log10()


def levelled(log: Tensor, loudest: float) -> Tensor:
    """Levels floored at 8 below the loudest of the whole input; (x + 4) / 4."""
    return (log.clamp(min=loudest - 8.0) + 4.0) / 4.0


def vocoder_mel(
    samples: Tensor, n_mels: int = 80, *, rate: int = 24_000, n_fft: int = 1920, hop: int = 480, high: float = 8000.0
) -> Tensor:
    """The mel that HiFi-GAN and its kin are trained on: samples [T] to [n_mels, T // hop].

    Amplitude with a periodic Hann window over what is mirrored by (n_fft - hop) / 2 at its ends; mel up to `high` Hz;
    natural logarithm floored at 1e-5.
    """
    side = (n_fft - hop) // 2
    padded = torch.nn.functional.pad(samples[None, None], (side, side), mode="reflect")[0, 0]
    window = torch.hann_window(n_fft, device=samples.device)
    spectrum = torch.stft(padded, n_fft, hop, window=window, center=False, return_complex=True)
    amplitude = torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 1e-9)
    filters = slaney_filters(n_mels, n_fft, rate, high).to(samples.device)
    return torch.matmul(filters, amplitude).clamp(min=1e-5).log()
