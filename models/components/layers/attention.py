"""Grouped-query self-attention over packed tokens; the step keeps the keys and values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from models.components.layers.norms import RMSNorm
from models.components.layers.rotary import rotate

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q [T, H, D], k and v [T, Hk, D] -> [T, H, D]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """`gated`: the output is multiplied by a sigmoid of a projection of the input. `qk_norm`: q and k are normed."""

    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    gated: bool = False
    qk_norm: bool = False
    eps: float = 1e-6
    offset: float = 0.0  # of the norms' weights


class Attention(nn.Module):
    """`qkv` has the rows of all queries, then of the gates, keys and values."""

    def __init__(self, shape: AttentionShape) -> None:
        super().__init__()
        self.shape = shape
        query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.split = [query, query if shape.gated else 0, key, key]
        self.qkv = nn.Linear(shape.dim, sum(self.split), bias=False)
        self.o_proj = nn.Linear(query, shape.dim, bias=False)
        if shape.qk_norm:
            self.q_norm = RMSNorm(shape.head_dim, shape.eps, shape.offset)
            self.k_norm = RMSNorm(shape.head_dim, shape.eps, shape.offset)
        if shape.gated:
            self.sigmoid = nn.Sigmoid()

    def forward(self, x: Tensor, layer: int, turn: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """[T, D] of x [T, D]; `turn` are `Rotary`'s cos and sin."""
        q, gate, k, v = self.qkv(x).split(self.split, -1)
        q, k, v = (part.unflatten(-1, (-1, self.shape.head_dim)) for part in (q, k, v))  # [T, heads, head_dim]
        if self.shape.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        found = attend(layer, rotate(q, *turn), rotate(k, *turn), v).flatten(1)
        if self.shape.gated:
            found = found * self.sigmoid(gate)
        return self.o_proj(found)
