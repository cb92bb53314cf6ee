"""HiFT, S3Gen's vocoder: mel frames to samples, a harmonic source and an inverse STFT (https://arxiv.org/abs/2309.09493)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.chatterbox.s3gen_config import MELS, VocoderConfig
from models.chatterbox.vocoder_source import HarmonicSource, PitchPredictor
from models.components.audio.snake import Snake

SLOPE = 0.1
LOUDEST_BIN = 100.0
LIMIT = 0.99


class SnakeBlock(nn.Module):
    """Pairs of convolutions, the first of each dilated, every pair with a residual."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()

        def conv(dilation: int) -> nn.Conv1d:
            return nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=dilation * (kernel - 1) // 2)

        self.convs1 = nn.ModuleList(conv(d) for d in dilations)
        self.convs2 = nn.ModuleList(conv(1) for _ in dilations)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in dilations)

    def forward(self, x: Tensor) -> Tensor:
        layers = (self.activations1, self.convs1, self.activations2, self.convs2)
        for snake1, conv1, snake2, conv2 in zip(*layers, strict=True):
            x = conv2(snake2(conv1(snake1(x)))) + x
        return x


class HiFT(nn.Module):
    """Mel [B, 80, T] to samples [B, 480 T]; rows of a batch have the same length."""

    window: Tensor

    def __init__(self, c: VocoderConfig) -> None:
        super().__init__()
        self.c = c
        bins = c.n_fft + 2
        widths = [c.channels >> i for i in range(len(c.rates) + 1)]
        self.f0_predictor, self.m_source = PitchPredictor(c.f0_channels), HarmonicSource()
        self.conv_pre = nn.Conv1d(MELS, c.channels, 7, padding=3)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(widths[i], widths[i + 1], k, u, padding=(k - u) // 2)
            for i, (u, k) in enumerate(zip(c.rates, c.kernels, strict=True))
        )
        self.source_downs = nn.ModuleList(
            _down(bins, width, math.prod(c.rates[i:])) for i, width in enumerate(widths[1:], 1)
        )
        self.source_resblocks = nn.ModuleList(
            SnakeBlock(width, k, c.dilations) for width, k in zip(widths[1:], c.source_kernels, strict=True)
        )
        self.resblocks = nn.ModuleList(
            SnakeBlock(width, k, c.dilations) for width in widths[1:] for k in c.block_kernels
        )
        self.conv_post = nn.Conv1d(widths[-1], bins, 7, padding=3)
        self.register_buffer("window", torch.hann_window(c.n_fft, dtype=torch.float64, device="cpu").float(), False)

    def pitch(self, mel: Tensor) -> Tensor:
        """The pitch of mel frames [B, 80, T], in Hz, at every sample: [B, 1, S]."""
        return self.f0_predictor(mel).repeat_interleave(self.c.samples_per_frame, 1)[:, None]

    def forward(self, mel: Tensor, source: Tensor) -> Tensor:
        """mel [B, 80, T] with its excitation [B, 1, S] -> samples [B, S]."""
        spectrum = torch.stft(source[:, 0], self.c.n_fft, self.c.hop, window=self.window, return_complex=True)
        parts = torch.cat([spectrum.real, spectrum.imag], 1)
        x, each = self.conv_pre(mel), len(self.c.block_kernels)
        for i, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, SLOPE))
            if i == len(self.ups) - 1:
                x = F.pad(x, (1, 0), mode="reflect")  # as many steps as the centred STFT has
            x = x + self.source_resblocks[i](self.source_downs[i](parts))
            x = sum(block(x) for block in self.resblocks[i * each : (i + 1) * each]) / each
        return self._sound(self.conv_post(F.leaky_relu(x)))

    def _sound(self, x: Tensor) -> Tensor:
        bins = self.c.n_fft // 2 + 1
        magnitude, phase = x[:, :bins].exp().clip(max=LOUDEST_BIN), x[:, bins:].sin()
        spectrum = torch.complex(magnitude * phase.cos(), magnitude * phase.sin())
        return torch.istft(spectrum, self.c.n_fft, self.c.hop, window=self.window).clamp(-LIMIT, LIMIT)


def _down(inputs: int, outputs: int, stride: int) -> nn.Conv1d:
    if stride == 1:
        return nn.Conv1d(inputs, outputs, 1)
    return nn.Conv1d(inputs, outputs, 2 * stride, stride, padding=stride // 2)
