"""Distances between pictures and videos: PSNR over all frames and of the worst one, and SSIM."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from parity.harness.compare import METRICS, Measure, Metric, decibels

RADIUS, SIGMA = 5, 1.5


def peak(dtype: torch.dtype) -> float:
    """The largest pixel: 255 for uint8, 1 for floats."""
    return 255.0 if dtype == torch.uint8 else 1.0


def _frames(pixels: Tensor) -> Tensor:
    """[..., H, W, C] as [frames, H, W, C] in float64; a picture is one frame."""
    if pixels.ndim < 3:
        raise ValueError(f"pictures are [..., H, W, C], got {list(pixels.shape)}")
    return pixels.reshape(-1, *pixels.shape[-3:]).to(torch.float64)


def frame_psnr(expected: Tensor, actual: Tensor) -> list[float]:
    """10 log10(peak^2 / MSE) of each frame, dB; infinite for equal frames."""
    errors = (_frames(expected) - _frames(actual)).square().mean(dim=(1, 2, 3))
    top = peak(expected.dtype) ** 2
    return [-decibels(error / top) for error in errors.tolist()]


def psnr(expected: Tensor, actual: Tensor) -> Measure:
    """PSNR over all frames: the peak over the mean squared error of the whole, dB."""
    error = float((_frames(expected) - _frames(actual)).square().mean())
    frames = frame_psnr(expected, actual)
    value = -decibels(error / peak(expected.dtype) ** 2)
    return Measure(value, None, f"worst frame {int(np.argmin(frames))} of {len(frames)}")


def psnr_worst(expected: Tensor, actual: Tensor) -> Measure:
    """PSNR of the worst frame, dB: a mean over many frames hides one that is broken."""
    frames = frame_psnr(expected, actual)
    at = int(np.argmin(frames))
    return Measure(frames[at], None, f"frame {at} of {len(frames)}")


def _blur(planes: np.ndarray) -> np.ndarray:
    """Gaussian window of 11 x 11, sigma 1.5, over [frames, H, W, C]; only where it fits."""
    from scipy.ndimage import correlate1d

    taps = np.exp(-0.5 * (np.arange(-RADIUS, RADIUS + 1) / SIGMA) ** 2)
    taps /= taps.sum()
    blurred = correlate1d(correlate1d(planes, taps, axis=1), taps, axis=2)
    return blurred[:, RADIUS:-RADIUS, RADIUS:-RADIUS]


def ssim(expected: Tensor, actual: Tensor) -> Measure:
    """Structural similarity, mean over frames and channels (Wang et al. 2004: K1 0.01, K2 0.03, 11 x 11
    Gaussian).

    Population variances, as in the paper. Pictures are at least 11 x 11.
    """
    a, b = _frames(expected).numpy(), _frames(actual).numpy()
    if min(a.shape[1:3]) <= 2 * RADIUS:
        raise ValueError(f"SSIM needs at least {2 * RADIUS + 1} pixels a side, got {a.shape[1:3]}")
    top = peak(expected.dtype)
    c1, c2 = (0.01 * top) ** 2, (0.03 * top) ** 2
    mean_a, mean_b = _blur(a), _blur(b)
    var_a, var_b = _blur(a * a) - mean_a**2, _blur(b * b) - mean_b**2
    cov = _blur(a * b) - mean_a * mean_b
    luminance = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    structure = (2 * cov + c2) / (var_a + var_b + c2)
    frames = (luminance * structure).mean(axis=(1, 2, 3))
    return Measure(float(frames.mean()), None, f"worst frame {int(frames.argmin())}: {frames.min():.4f}")


for _metric in (
    Metric("psnr", "higher", psnr, decibel=True),
    Metric("psnr_worst", "higher", psnr_worst, decibel=True),
    Metric("ssim", "higher", ssim),
):
    METRICS[_metric.name] = _metric
