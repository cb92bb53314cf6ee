"""Root-mean-square norms (Zhang and Sennrich 2019), computed in float32."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / rms(x) * (offset + weight) over the last axis. `offset` is 1 where checkpoints keep weight - 1."""

    def __init__(self, dim: int, eps: float = 1e-6, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps, self.offset = eps, offset

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (scaled * (self.offset + self.weight.float())).to(x.dtype)


class GatedRMSNorm(nn.Module):
    """x / rms(x) * weight * silu(gate) over the last axis."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps
        self.act = nn.SiLU()

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * scaled.to(x.dtype) * self.act(gate.float())).to(x.dtype)


def unit(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / |x| over the last axis, with `eps` under the root."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps)
