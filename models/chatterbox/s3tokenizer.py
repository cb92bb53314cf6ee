"""The S3 speech tokenizer (version 2): log-mel frames of a clip to 25 tokens a second."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.chatterbox.s3gen_config import PROMPT_RATE, TokenizerConfig
from models.components.audio.mel import log_mel

KERNEL = 31  # of the memory block: 15 tokens each way
DIGITS = 8  # a token is a number of so many digits, base 3
MOST_TOKENS = 1500  # in one pass: the rotations are made for 2048
INSIDE = 0.9990000128746033  # keeps tanh off the point where rounding would turn


def rotations(width: int, count: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [count, width] of rotary positions, base 10,000, both halves alike."""
    with torch.device("cpu"):  # a constant of the code, whatever device the parameters are made on
        rates = 1.0 / (10000.0 ** (torch.arange(0, width, 2).float() / width))
        turned = torch.polar(torch.ones(count, width // 2), torch.outer(torch.arange(count), rates).float())
    return torch.cat([turned.real] * 2, -1), torch.cat([turned.imag] * 2, -1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, T, H, D] turned by the angles [T, D] of its positions."""
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]


class Attention(nn.Module):
    """Rotary self-attention beside a memory: a depthwise convolution over the values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.fsmn_block = nn.Conv1d(width, width, KERNEL, groups=width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, width = x.shape
        scale = (width // self.heads) ** -0.25
        q, k, v = (to(x).view(b, t, self.heads, -1) for to in (self.query, self.key, self.value))
        around = F.pad(v.reshape(b, t, width).transpose(1, 2), (KERNEL // 2, KERNEL // 2))
        memory = self.fsmn_block(around).transpose(1, 2) + v.reshape(b, t, width)
        q = rotated(q, cos, sin).transpose(1, 2) * scale
        k = rotated(k, cos, sin).permute(0, 2, 3, 1) * scale
        mixed = torch.softmax(q @ k, -1) @ v.transpose(1, 2)
        return self.out(mixed.transpose(1, 2).flatten(2)) + memory


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn, self.attn_ln, self.mlp_ln = Attention(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.attn_ln(x), cos, sin)
        return x + self.mlp(self.mlp_ln(x))


class AudioEncoder(nn.Module):
    """Mel [B, mels, T] at 100 a second to [B, T / 4, width]."""

    cos: Tensor
    sin: Tensor

    def __init__(self, c: TokenizerConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(c.mels, c.width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(c.width, c.width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Layer(c.width, c.heads) for _ in range(c.layers))
        cos, sin = rotations(c.width // c.heads, MOST_TOKENS)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, mel: Tensor) -> Tensor:
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).permute(0, 2, 1)
        for block in self.blocks:
            x = block(x, self.cos[: x.shape[1]], self.sin[: x.shape[1]])
        return x


class Codebook(nn.Module):
    """Finite scalar quantisation (https://arxiv.org/abs/2309.15505): eight numbers, each rounded to -1, 0 or 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project_down = nn.Linear(width, DIGITS)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] -> [B, T] int64 in [0, 3 ** 8)."""
        digits = (self.project_down(x).tanh() * INSIDE).round() + 1
        return (digits * 3.0 ** torch.arange(DIGITS, device=x.device)).sum(-1).long()


class Quantizer(nn.Module):
    """Holds the codebook under the checkpoint's name."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._codebook = Codebook(width)

    def forward(self, x: Tensor) -> Tensor:
        return self._codebook(x)


class S3Tokenizer(nn.Module):
    """Sound at 16 kHz to speech tokens."""

    def __init__(self, c: TokenizerConfig) -> None:
        super().__init__()
        self.mels = c.mels
        self.encoder, self.quantizer = AudioEncoder(c), Quantizer(c.width)

    def mel(self, samples: Tensor) -> Tensor:
        """Log-mel [mels, T // 160] of samples [T]."""
        return log_mel(samples, self.mels, rate=PROMPT_RATE)

    def forward(self, samples: Tensor, most: int | None = None) -> Tensor:
        """Samples [T] at 16 kHz, of at most 30 s, to tokens [n] int64, n <= `most`."""
        mel = self.mel(samples)
        if most is not None:
            mel = mel[:, : 4 * most]
        return self.quantizer(self.encoder(mel[None]))[0]
