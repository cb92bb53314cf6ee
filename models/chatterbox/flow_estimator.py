"""S3Gen's estimator: a causal U-Net over mel frames that predicts the velocity of the flow."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.chatterbox.s3gen_config import MELS, EstimatorConfig
from models.chatterbox.sight import ALL, Sight
from serving.attention import dense

INPUTS = 4 * MELS  # the state, what the encoder says, the speaker, the prompt


def times(t: Tensor, width: int) -> Tensor:
    """Sinusoids of 1000 t: [B] -> [B, width], sines first."""
    rates = torch.exp(torch.arange(width // 2, device=t.device).float() * -(math.log(10000) / (width // 2 - 1)))
    angles = 1000 * t[:, None] * rates[None]
    return torch.cat([angles.sin(), angles.cos()], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
    """Attention of q [B, H, T, D] over the real keys."""
    if sight.mask is None:
        return dense(q, k, v)
    if sight.counts is None:
        return dense(q, k, v, mask=sight.mask[:, None] > 0)
    rows = zip(q.split(1), k.split(1), v.split(1), sight.counts, strict=True)
    return torch.cat([dense(qi, ki[:, :, :n], vi[:, :, :n]) for qi, ki, vi, n in rows])


def masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """x [B, C, T] with zeros where mask [B, 1, T] is 0; None masks nothing."""
    return x if mask is None else x * mask


class CausalConv(nn.Conv1d):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (2, 0)))


class Turned(nn.Module):
    """[B, C, T] to [B, T, C] and back."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Block(nn.Module):
    """A causal convolution, a norm over the channels, Mish."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.block = nn.Sequential(CausalConv(inputs, outputs), Turned(), nn.LayerNorm(outputs), Turned(), nn.Mish())

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return masked(self.block(masked(x, mask)), mask)


class Resnet(nn.Module):
    """Two blocks with the time between them, beside a residual."""

    def __init__(self, inputs: int, outputs: int, time_width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Mish(), nn.Linear(time_width, outputs))
        self.block1, self.block2 = Block(inputs, outputs), Block(outputs, outputs)
        self.res_conv = nn.Conv1d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor, mask: Tensor | None) -> Tensor:
        h = self.block1(x, mask) + self.mlp(time)[..., None]
        return self.block2(h, mask) + self.res_conv(masked(x, mask))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, head_width: int) -> None:
        super().__init__()
        inner = heads * head_width
        self.heads = heads
        self.to_q, self.to_k = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.to_v = nn.Linear(width, inner, bias=False)
        self.to_out = nn.ModuleList([nn.Linear(inner, width)])

    def forward(self, x: Tensor, sight: Sight) -> Tensor:
        """x [B, T, C]."""
        b, t, _ = x.shape
        q, k, v = (to(x).view(b, t, self.heads, -1).transpose(1, 2) for to in (self.to_q, self.to_k, self.to_v))
        return self.to_out[0](attend(q, k, v, sight).transpose(1, 2).reshape(b, t, -1))


class Expand(nn.Module):
    """The first half of the feed-forward network."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.proj, self.activation = nn.Linear(width, hidden), nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.proj(x))


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.ModuleList([Expand(width, 4 * width), nn.Identity(), nn.Linear(4 * width, width)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.net:
            x = layer(x)
        return x


class Transformer(nn.Module):
    def __init__(self, c: EstimatorConfig) -> None:
        super().__init__()
        self.norm1, self.norm3 = nn.LayerNorm(c.channels), nn.LayerNorm(c.channels)
        self.attn1 = Attention(c.channels, c.heads, c.head_width)
        self.ff = FeedForward(c.channels)

    def forward(self, x: Tensor, sight: Sight) -> Tensor:
        x = self.attn1(self.norm1(x), sight) + x
        return self.ff(self.norm3(x)) + x


class Stage(nn.ModuleList):
    """A residual block, its transformers, and for the outer stages a convolution."""

    def __init__(self, c: EstimatorConfig, inputs: int, conv: bool) -> None:
        layers = nn.ModuleList(Transformer(c) for _ in range(c.layers))
        parts: list[nn.Module] = [Resnet(inputs, c.channels, 4 * c.channels), layers]
        super().__init__([*parts, CausalConv(c.channels, c.channels)] if conv else parts)

    def forward(self, x: Tensor, time: Tensor, sight: Sight) -> Tensor:
        """Everything but the convolution: [B, C, T] -> [B, channels, T]."""
        resnet, layers = self[0], self[1]
        x = resnet(x, time, sight.mask).transpose(1, 2).contiguous()
        for layer in layers:  # type: ignore[attr-defined]
            x = layer(x, sight)
        return x.transpose(1, 2).contiguous()


class TimeMlp(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.linear_1, self.act, self.linear_2 = nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(self.act(self.linear_1(x)))


class Estimator(nn.Module):
    """Velocities [B, 80, T] of states [B, 80, T]."""

    def __init__(self, c: EstimatorConfig) -> None:
        super().__init__()
        width = 4 * c.channels
        self.time_mlp = TimeMlp(INPUTS, width)
        self.time_embed_mixer = nn.Linear(2 * width, width, bias=False) if c.meanflow else None
        self.down_blocks = nn.ModuleList([Stage(c, INPUTS, True)])
        self.mid_blocks = nn.ModuleList(Stage(c, c.channels, False) for _ in range(c.mid_blocks))
        self.up_blocks = nn.ModuleList([Stage(c, 2 * c.channels, True)])
        self.final_block = Block(c.channels, c.channels)
        self.final_proj = nn.Conv1d(c.channels, MELS, 1)

    def time(self, t: Tensor, r: Tensor) -> Tensor:
        """The embedding of a step from time t to r, [B] each; plain flow looks at t alone."""
        start = self.time_mlp(times(t, INPUTS))
        if self.time_embed_mixer is None:
            return start
        return self.time_embed_mixer(torch.cat([start, self.time_mlp(times(r, INPUTS))], 1))

    def forward(self, x: Tensor, around: Tensor, time: Tensor, sight: Sight = ALL) -> Tensor:
        """x [B, 80, T], around [B, 240, T]: what the encoder says, the speaker, the prompt's mel."""
        mask, down, up = sight.mask, self.down_blocks[0], self.up_blocks[0]
        x = skip = down(torch.cat([x, around], 1), time, sight)
        x = down[2](masked(x, mask))  # type: ignore[index]
        for stage in self.mid_blocks:
            x = stage(x, time, sight)
        x = up(torch.cat([x, skip], 1), time, sight)
        x = up[2](masked(x, mask))  # type: ignore[index]
        return masked(self.final_proj(masked(self.final_block(x, mask), mask)), mask)
