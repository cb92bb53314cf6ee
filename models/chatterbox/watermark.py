"""PerTh, Resemble's inaudible watermark: embedded on the device, from the weights that `resemble-perth` ships.

The mark is what the network adds to the magnitudes below 2 kHz. It is made at 32 kHz and brought back to the sound's
rate by itself, so that the sound is never resampled. The package resamples the whole; nothing else differs.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.components.audio.sinc import resample
from models.weights.loading import load_strict, on_meta
from models.weights.sources import Package, fetch
from serving.errors import SetupError

log = logging.getLogger("toolkit.chatterbox")

CHECKPOINT = "perth/perth_net/pretrained/implicit/perth_net_250000.pth.tar"
PACKAGE = Package(
    "resemble-perth",
    "1.0.1",
    "65e9c37531b1a128a4a56226b75dece4521683cf3611b0b2a5ffe234f00c9342",
    {CHECKPOINT: "a15bce457ebc53ce5e6c9c3f11df78cf7ee2bf9cdab0a798902135b4c4027670"},
)
RATE, N_FFT, HOP = 32_000, 2048, 320
BANDS, HIDDEN = 128, 256  # bins below 2 kHz
QUIETEST, HEADROOM = -180.0, 15.0  # dB
LOUD = 0.05  # of the loudest frame: quieter ones are not marked


class Conv(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, act: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.conv(x)) if self.act else self.conv(x)


def stack(outputs: int) -> nn.Sequential:
    """Magnitudes [B, 128, T] to [B, outputs, T]."""
    inner = [Conv(HIDDEN, HIDDEN, 7) for _ in range(5)]
    return nn.Sequential(Conv(BANDS, HIDDEN, 1), *inner, Conv(HIDDEN, outputs, 1, act=False))


def loud(magnitude: Tensor) -> Tensor:
    """[B, 1, T]: 1 where a frame is loud enough to carry the mark."""
    total = magnitude.sum(1, keepdim=True)
    return (total > total.amax(2, keepdim=True) * LOUD).float()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = stack(BANDS)

    def forward(self, magnitude: Tensor) -> Tensor:
        """What is added to the lowest bands [B, 128, T] of magnitudes [B, 1025, T]."""
        return self.layers(magnitude[:, :BANDS]) * loud(magnitude)


class Decoder(nn.Module):
    """Listens at three speeds, each of which says what it found and how sure it is."""

    def __init__(self) -> None:
        super().__init__()
        self.slow_layers, self.normal_layers, self.fast_layers = stack(2), stack(2), stack(2)

    def forward(self, magnitude: Tensor) -> Tensor:
        """Magnitudes [B, 1025, T] to [B]: about 1 with the mark, about 0 without."""
        bands, mask, count = magnitude[:, :BANDS], loud(magnitude), magnitude.shape[2]
        heard = []
        for layers, frames in (
            (self.slow_layers, int(count * 1.25)),
            (self.normal_layers, count),
            (self.fast_layers, int(count * 0.75)),
        ):
            found = layers(
                bands if frames == count else F.interpolate(bands, frames, mode="linear", align_corners=True)
            )
            real = F.interpolate(mask, frames)
            heard.append((found * real).sum(2) / real.sum(2))
        sure, marked = torch.stack(heard, 1).unbind(2)
        return (marked * torch.softmax(sure, 1)).sum(1)


class Spectrum(NamedTuple):
    """Magnitudes in dB, brought to about 0 to 1, and phases: [B, 1025, T] each."""

    magnitude: Tensor
    phase: Tensor


class PerTh(nn.Module):
    """The watermarking network and its detector."""

    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()
        self.register_buffer("window", torch.hann_window(N_FFT, device="cpu"), persistent=False)

    def spectrum(self, samples: Tensor) -> Spectrum:
        """Samples [B, T] at 32 kHz."""
        found = torch.stft(samples, N_FFT, HOP, window=self.window, return_complex=True)
        level = 20 * torch.log10(found.abs().clip(1e-9))
        return Spectrum((level - QUIETEST) / (HEADROOM - QUIETEST), found.angle())

    def mark(self, samples: Tensor, rate: int) -> Tensor:
        """Samples [B, T] with the mark in them; those that are too short to carry it come back as they are."""
        at32 = resample(samples, rate, RATE)
        if at32.shape[1] <= N_FFT // 2:
            return samples
        magnitude, phase = self.spectrum(at32)
        added = self.encoder(magnitude)
        low, angle = magnitude[:, :BANDS], phase[:, :BANDS]
        change = torch.polar(amplitude(low + added) - amplitude(low), angle)
        whole = F.pad(change, (0, 0, 0, magnitude.shape[1] - BANDS))
        mark = torch.istft(whole, N_FFT, HOP, window=self.window, length=at32.shape[1])
        return samples + resample(mark, RATE, rate)[:, : samples.shape[1]]

    def detect(self, samples: Tensor, rate: int) -> Tensor:
        """How sure it is that samples [B, T] are marked: [B] in [0, 1]."""
        return self.decoder(self.spectrum(resample(samples, rate, RATE)).magnitude).clip(0.0, 1.0)


def amplitude(magnitude: Tensor) -> Tensor:
    """Of magnitudes as `Spectrum` has them."""
    return 10.0 ** ((magnitude * (HEADROOM - QUIETEST) + QUIETEST) / 20).clip(max=10)


def load() -> PerTh:
    """The network with the package's weights. Raises `SetupError` where they cannot be had."""
    held = torch.load(fetch(PACKAGE) / CHECKPOINT, map_location="cpu", weights_only=True)
    weights = {name: value for name, value in held["model"].items() if not name.startswith("ap.")}  # constants
    return load_strict(on_meta(PerTh), weights).eval().requires_grad_(False)


def found() -> PerTh | None:
    """The network, or None, said in the log: this deployment's sound is not marked."""
    try:
        return load()
    except SetupError as error:
        log.warning("sound will not be watermarked: resemble-perth cannot be had (%s)", error)
        return None
