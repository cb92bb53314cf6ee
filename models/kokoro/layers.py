"""Layers that Kokoro's networks share, over rows padded to one length.

Every activation is [B, C, T] with row i valid up to its own length. A layer that looks along time gives row i what it
would give that row alone: statistics count valid positions only, and what a convolution reads past the end is zero,
as its own padding would be.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Span:
    """Which positions of padded rows are real."""

    lengths: Tensor  # [B] int64
    mask: Tensor  # [B, 1, T] float32: 1 where real
    count: Tensor  # [B, 1, 1] float32

    @classmethod
    def of(cls, lengths: Tensor, size: int) -> Span:
        steps = torch.arange(size, device=lengths.device)
        mask = (steps < lengths[:, None]).float()[:, None]
        return cls(lengths, mask, lengths.float().clamp(min=1)[:, None, None])

    def reversed(self) -> Tensor:
        """[B, T] the order that turns each row's real part around and leaves its padding; its own inverse."""
        steps = torch.arange(self.mask.shape[-1], device=self.lengths.device)
        last = self.lengths[:, None] - 1
        return torch.where(steps <= last, last - steps, steps)


class BiLSTM(nn.Module):
    """A bidirectional LSTM whose backward direction starts at each row's own end. x [B, T, C] -> [B, T, 2H].

    torch's names, but not `nn.LSTM`: that one takes rows of different lengths only packed, by lengths on the host.
    """

    KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        for name in ("l0", "l0_reverse"):
            for kind, columns in zip(self.KINDS, ((inputs,), (hidden,), (), ()), strict=True):
                weight = torch.empty(4 * hidden, *columns).uniform_(-(hidden**-0.5), hidden**-0.5)
                self.register_parameter(f"{kind}_{name}", nn.Parameter(weight))

    def forward(self, x: Tensor, span: Span) -> Tensor:
        order = span.reversed()[:, :, None]
        ahead = self._direction(x, "l0")
        back = self._direction(x.gather(1, order.expand(-1, -1, x.shape[2])), "l0_reverse")
        back = back.gather(1, order.expand(-1, -1, back.shape[2]))
        return torch.cat([ahead, back], 2) * span.mask.transpose(1, 2)

    def _direction(self, x: Tensor, name: str) -> Tensor:
        zero = x.new_zeros(1, x.shape[0], self.hidden)
        weights = [getattr(self, f"{kind}_{name}") for kind in self.KINDS]
        return torch.lstm(x, (zero, zero), weights, True, 1, 0.0, False, False, True)[0]


class AdaIN1d(nn.Module):
    """Instance norm over real positions, then a scale and a shift from the style. Zero past the end."""

    EPS = 1e-5

    def __init__(self, style_dim: int, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(style_dim, 2 * channels)

    def forward(self, x: Tensor, style: Tensor, span: Span) -> Tensor:
        scale, shift = self.fc(style)[:, :, None].chunk(2, 1)
        mean = x @ span.mask.transpose(1, 2) / span.count  # [B, C, 1]
        centred = (x - mean).mul_(span.mask)
        variance = centred.square().sum(-1, keepdim=True) / span.count
        centred.mul_((1 + scale) * torch.rsqrt(variance + self.EPS))
        return torch.addcmul(centred, shift, span.mask)


class AdaLayerNorm(nn.Module):
    """Layer norm over channels with a scale and a shift from the style. x [B, T, C]."""

    EPS = 1e-5

    def __init__(self, style_dim: int, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.fc = nn.Linear(style_dim, 2 * channels)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        scale, shift = self.fc(style)[:, None].chunk(2, 2)
        return (1 + scale) * F.layer_norm(x, (self.channels,), eps=self.EPS) + shift


class AdainResBlk1d(nn.Module):
    """Two styled convolutions with a shortcut; `upsample` doubles the length, and the span given is the output's."""

    def __init__(self, dim_in: int, dim_out: int, style_dim: int, *, upsample: bool = False) -> None:
        super().__init__()
        self.upsample = upsample
        self.conv1 = nn.Conv1d(dim_in, dim_out, 3, padding=1)
        self.conv2 = nn.Conv1d(dim_out, dim_out, 3, padding=1)
        self.norm1 = AdaIN1d(style_dim, dim_in)
        self.norm2 = AdaIN1d(style_dim, dim_out)
        self.conv1x1 = nn.Conv1d(dim_in, dim_out, 1, bias=False) if dim_in != dim_out else None
        self.pool = nn.ConvTranspose1d(dim_in, dim_in, 3, 2, 1, 1, groups=dim_in) if upsample else None

    def forward(self, x: Tensor, style: Tensor, span: Span, out: Span) -> Tensor:
        h = F.leaky_relu(self.norm1(x, style, span), 0.2)
        if self.pool is not None:
            h = self.pool(h) * out.mask
        h = F.leaky_relu(self.norm2(self.conv1(h), style, out), 0.2)
        return (self.conv2(h) + self._shortcut(x)) * 0.5**0.5

    def _shortcut(self, x: Tensor) -> Tensor:
        x = x.repeat_interleave(2, dim=2) if self.upsample else x
        return x if self.conv1x1 is None else self.conv1x1(x)
