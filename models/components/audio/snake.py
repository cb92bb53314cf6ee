"""Snake, the periodic activation of neural vocoders."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SMALLEST = 1e-9  # added to alpha where it divides


class Snake(nn.Module):
    """x + sin²(alpha x) / alpha for [B, C, T], with one alpha a channel (https://arxiv.org/abs/2006.08195)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        alpha = self.alpha[:, None]
        return (x * alpha).sin_().square_().mul_(1.0 / (alpha + SMALLEST)).add_(x)
