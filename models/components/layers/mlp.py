"""The gated feed-forward layer (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

from torch import Tensor, nn


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)); `gate_up` holds both projections, gate first."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:  # [T, D]
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down_proj(self.act(gate) * up)
