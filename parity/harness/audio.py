"""Distances between sounds, for outputs that are right without being equal: spectra, embeddings, joins of
chunks.

Waveforms are [..., T] at `RATE`; resample first. For waveforms that should be equal, use `snr` of `compare`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from parity.harness.compare import METRICS, Measure, Metric, at_most_one, scalar

RATE, FFT, HOP, MELS, CEPSTRA = 16_000, 400, 160, 80, 13


def _hz_to_mel(hz: np.ndarray) -> np.ndarray:
    """Slaney's scale: linear to 1 kHz, then logarithmic, 27 steps to 6.4 times the frequency."""
    linear = hz / (200.0 / 3)
    return np.where(hz < 1000.0, linear, 15.0 + 27.0 * np.log(np.maximum(hz, 1e-9) / 1000.0) / np.log(6.4))


def _mel_to_hz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15.0, mel * (200.0 / 3), 1000.0 * np.exp((mel - 15.0) * np.log(6.4) / 27.0))


@functools.cache
def mel_filters(rate: int = RATE, fft: int = FFT, mels: int = MELS) -> Tensor:
    """Slaney's triangular filters of unit area, [mels, fft // 2 + 1], float64."""
    edges = _mel_to_hz(np.linspace(0.0, _hz_to_mel(np.array(rate / 2.0)), mels + 2))
    bins = np.linspace(0.0, rate / 2, fft // 2 + 1)
    ramps = edges[:, None] - bins[None, :]
    gaps = np.diff(edges)[:, None]
    triangles = np.maximum(0.0, np.minimum(-ramps[:-2] / gaps[:-1], ramps[2:] / gaps[1:]))
    return torch.from_numpy(triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None])


def log_mel(audio: Tensor) -> Tensor:
    """Natural log of the mel power spectrum, floor 1e-10: [..., T] to [..., mels, frames], float64."""
    wave = audio.to(torch.float64)
    window = torch.hann_window(FFT, dtype=torch.float64)
    spectrum = torch.stft(wave.reshape(-1, wave.shape[-1]), FFT, HOP, window=window, return_complex=True)
    mel = mel_filters() @ spectrum.abs().square()
    return mel.clamp(min=1e-10).log().reshape(*wave.shape[:-1], *mel.shape[-2:])


def log_mel_correlation(expected: Tensor, actual: Tensor) -> Measure:
    """Pearson correlation of the log-mel spectra over all bands and frames."""
    a, b = log_mel(expected).reshape(-1), log_mel(actual).reshape(-1)
    a, b = a - a.mean(), b - b.mean()
    scale = float(a.norm() * b.norm())
    return Measure(at_most_one(float(a @ b) / scale) if scale else float(torch.equal(a, b)))


def cepstra(audio: Tensor) -> Tensor:
    """Mel cepstra 1..13 (orthonormal DCT-II of the log-mel *amplitude* spectrum), [..., frames, 13]."""
    k = torch.arange(1, CEPSTRA + 1, dtype=torch.float64)[:, None]
    n = torch.arange(MELS, dtype=torch.float64)[None, :]
    basis = math.sqrt(2.0 / MELS) * torch.cos(math.pi * k * (2 * n + 1) / (2 * MELS))
    return (basis @ (log_mel(audio) / 2)).transpose(-1, -2)


def mel_cepstral_distortion(expected: Tensor, actual: Tensor) -> Measure:
    """(10 / ln 10) sqrt(2 sum_k (c_k - c'_k)^2), mean over frames, dB (Kubichek 1993).

    The 0th coefficient, loudness, is left out. Frames are compared in place: no time warping hides a shift.
    """
    gap = (cepstra(expected) - cepstra(actual)).square().sum(dim=-1)
    frames = (10.0 / math.log(10.0)) * (2.0 * gap).sqrt().reshape(-1)
    return Measure(float(frames.mean()), None, f"worst frame {int(frames.argmax())}: {float(frames.max()):.3f} dB")


def join_excess(audio: Tensor, joins: Sequence[int], around: int = 400) -> float:
    """How far the worst step across a join of chunks exceeds the largest step nearby; 1 or less is inaudible.

    `joins` are sample indices where a chunk begins. A step is |x[i] - x[i - 1]|; nearby are `around`
    samples each side.
    """
    steps = audio.to(torch.float64).diff().abs()  # steps[i - 1] leads to sample i
    worst = 0.0
    for join in joins:
        near = torch.cat([steps[max(0, join - 1 - around) : join - 1], steps[join : join + around]])
        base = float(near.max()) if near.numel() else 0.0
        step = float(steps[join - 1])
        worst = max(worst, step / base if base else (math.inf if step else 0.0))
    return worst


for _metric in (
    Metric("log_mel_correlation", "higher", log_mel_correlation),
    Metric("mel_cepstral_distortion", "lower", mel_cepstral_distortion),
    Metric("join_excess", "lower", scalar),
):
    METRICS[_metric.name] = _metric
