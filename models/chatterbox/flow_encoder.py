"""S3Gen's encoder: embedded speech tokens to twice as many frames, with three tokens of look-ahead."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.chatterbox.s3gen_config import LOOKAHEAD, EncoderConfig
from models.chatterbox.sight import ALL, Sight

MOST_FRAMES = 5000  # relative positions reach so far each way


def relative_table(width: int, most: int = MOST_FRAMES) -> Tensor:
    """Sinusoids of the distances most - 1 .. 1 - most, [2 * most - 1, width] (https://arxiv.org/abs/1901.02860)."""
    with torch.device("cpu"):  # a constant of the code, whatever device the parameters are made on
        rates = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * -(math.log(10000.0) / width))
        angles = torch.arange(most, dtype=torch.float32)[:, None] * rates
        table = torch.empty(2, most, width)
    table[:, :, 1::2] = torch.cos(angles)
    table[0, :, 0::2] = torch.sin(angles)
    table[1, :, 0::2] = -table[0, :, 0::2]
    return torch.cat([table[0].flip(0), table[1, 1:]])


def shifted(scores: Tensor) -> Tensor:
    """Scores by distance [B, H, T, 2T - 1] to scores by key [B, H, T, T]: row i is read from T - 1 - i on."""
    b, heads, t, width = scores.shape
    padded = F.pad(scores, (1, 0)).view(b, heads, width + 1, t)
    return padded[:, :, 1:].view(b, heads, t, width)[..., :t]


class RelativeAttention(nn.Module):
    """Self-attention that scores contents and distances, with a learnt bias for each (Transformer-XL)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.linear_q, self.linear_k = nn.Linear(width, width), nn.Linear(width, width)
        self.linear_v, self.linear_out = nn.Linear(width, width), nn.Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, self.head_width))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, self.head_width))

    def forward(self, x: Tensor, distances: Tensor, sight: Sight) -> Tensor:
        """x [B, T, C], distances [2T - 1, C]; tokens behind a row's real ones are not heard."""
        b, t, _ = x.shape
        q = self.linear_q(x).view(b, t, self.heads, self.head_width)
        k = self.linear_k(x).view(b, t, self.heads, self.head_width).transpose(1, 2)
        v = self.linear_v(x).view(b, t, self.heads, self.head_width).transpose(1, 2)
        p = self.linear_pos(distances[None]).view(1, -1, self.heads, self.head_width).transpose(1, 2)
        if sight.counts is None:
            mixed = self._mixed(q, k, v, p, sight.mask)
        else:
            mixed = torch.zeros_like(v)
            for i, n in enumerate(sight.counts):
                near = p[:, :, t - n : t + n - 1]
                mixed[i, :, :n] = self._mixed(q[i : i + 1, :n], k[i : i + 1, :, :n], v[i : i + 1, :, :n], near, None)[0]
        return self.linear_out(mixed.transpose(1, 2).reshape(b, t, -1))

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor, p: Tensor, mask: Tensor | None) -> Tensor:
        """Values [B, H, T, D] by their scores."""
        content = torch.matmul((q + self.pos_bias_u).transpose(1, 2), k.transpose(-2, -1))
        distance = torch.matmul((q + self.pos_bias_v).transpose(1, 2), p.transpose(-2, -1))
        scores = (content + shifted(distance)) / math.sqrt(self.head_width)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None] == 0, -math.inf)
        return torch.matmul(torch.softmax(scores, dim=-1), v)


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w_1, self.w_2, self.activation = nn.Linear(width, hidden), nn.Linear(hidden, width), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.w_2(self.activation(self.w_1(x)))


class Layer(nn.Module):
    """Attention and a feed-forward network, each behind a norm and beside a residual."""

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(c.width, c.heads)
        self.feed_forward = FeedForward(c.width, c.hidden)
        self.norm_ff, self.norm_mha = nn.LayerNorm(c.width, eps=1e-12), nn.LayerNorm(c.width, eps=1e-12)

    def forward(self, x: Tensor, distances: Tensor, sight: Sight) -> Tensor:
        x = x + self.self_attn(self.norm_mha(x), distances, sight)
        return x + self.feed_forward(self.norm_ff(x))


class Embed(nn.Module):
    """A linear layer and a norm, scaled up as the positions expect."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.out = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x) * self.scale


class PreLookahead(nn.Module):
    """What the three tokens ahead say, by a convolution, and a causal one over that."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(width, width, LOOKAHEAD + 1), nn.Conv1d(width, width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = F.leaky_relu(self.conv1(F.pad(x.transpose(1, 2), (0, LOOKAHEAD))))
        return self.conv2(F.pad(h, (2, 0))).transpose(1, 2) + x


class Upsample(nn.Module):
    """Every token twice, and a causal convolution over that."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x.repeat_interleave(2, 1).transpose(1, 2), (4, 0))).transpose(1, 2).contiguous()


class Encoder(nn.Module):
    """Tokens [B, T, C] to frames [B, 2T, C]."""

    distances: Tensor

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.embed, self.up_embed = Embed(c.width), Embed(c.width)
        self.pre_lookahead_layer, self.up_layer = PreLookahead(c.width), Upsample(c.width)
        self.encoders = nn.ModuleList(Layer(c) for _ in range(c.blocks))
        self.up_encoders = nn.ModuleList(Layer(c) for _ in range(c.up_blocks))
        self.after_norm = nn.LayerNorm(c.width)
        self.register_buffer("distances", relative_table(c.width), persistent=False)

    def forward(self, x: Tensor, sight: Sight = ALL) -> Tensor:
        """`sight`: which tokens are real."""
        x = self.embed(x)
        if sight.mask is not None:
            x = x * sight.mask.transpose(1, 2)  # a row alone has nothing but zeros behind its end
        x = self._layers(self.encoders, self.pre_lookahead_layer(x), sight)
        return self.after_norm(self._layers(self.up_encoders, self.up_embed(self.up_layer(x)), sight.frames()))

    def _layers(self, layers: nn.ModuleList, x: Tensor, sight: Sight) -> Tensor:
        count = x.shape[1]
        distances = self.distances[MOST_FRAMES - count : MOST_FRAMES + count - 1]
        for layer in layers:
            x = layer(x, distances, sight)
        return x
