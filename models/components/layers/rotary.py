"""Rotary position embeddings (Su et al. 2021), over part of a head and over several axes of position (M-RoPE)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

REGISTER = 64  # elements: no cosine is computed as the rest of a vector register, whose bits differ


def interleaved(sections: Sequence[int]) -> list[int]:
    """The axis of each frequency where axes take turns: Qwen3-VL's M-RoPE.

    Axis a > 0 has the frequencies a, a + n, ... below n * sections[a], of n axes; axis 0 has the others.
    """
    axes, count = [0] * sum(sections), len(sections)
    for axis in range(1, count):
        for at in range(axis, min(count * sections[axis], len(axes)), count):
            axes[at] = axis
    return axes


class Rotary(nn.Module):
    """Turns the first `dim` channels of each head. `axes`: the axis whose position turns each of the dim / 2 pairs."""

    inv_freq: Tensor
    axes: Tensor

    def __init__(self, dim: int, base: float, axes: Sequence[int] | None = None) -> None:
        super().__init__()
        # On the host even where the module is made without storage: these are no weights, nothing will fill them.
        steps = torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim
        self.register_buffer("inv_freq", 1.0 / base**steps, persistent=False)
        chosen = torch.tensor(axes or [0] * (dim // 2), dtype=torch.int64, device="cpu")
        self.register_buffer("axes", chosen, persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [T, dim / 2] float32 at positions [T], or [axes, T] where there are several."""
        at = positions[self.axes].T if positions.dim() == 2 else positions[:, None]
        angles = at.float() * self.inv_freq
        count = angles.numel()
        flat = F.pad(angles.reshape(-1), (0, -count % REGISTER))
        return flat.cos()[:count].view(angles.shape), flat.sin()[:count].view(angles.shape)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, H, D] with channel i turned against channel i + dim / 2, for i below dim / 2; the rest stays."""
    half = cos.shape[-1]
    cos, sin = (part[:, None].to(x.dtype) for part in (cos, sin))
    one, two, rest = x.tensor_split((half, 2 * half), -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin, rest], -1)
