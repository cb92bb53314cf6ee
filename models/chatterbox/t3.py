"""T3: text tokens and a voice to speech tokens. Attention is a callable, so that one network runs on paged caches.

The backbones are Llama (RMSNorm, rotary positions with Llama 3.1's scaling, SwiGLU) and, for Turbo, GPT-2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.chatterbox.config import HEAD_DIM, LONGEST_TURBO, T3Config
from models.chatterbox.perceiver import Conditioning

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q [T, H, D], k, v -> [T, H, D]
EPS = 1e-5
ROPE_THETA = 500_000.0
ROPE_FACTOR, ROPE_LOW, ROPE_HIGH, ROPE_ORIGINAL = 8.0, 1.0, 4.0, 8192


def frequencies() -> Tensor:
    """Rotary frequencies [head_dim / 2] after Llama 3.1's scaling: slow ones divided by 8, fast ones kept."""
    plain = 1.0 / (ROPE_THETA ** (torch.arange(0, HEAD_DIM, 2, dtype=torch.int64).float() / HEAD_DIM))
    turns = ROPE_ORIGINAL * plain / (2 * math.pi)  # over the original context
    mix = (turns - ROPE_LOW) / (ROPE_HIGH - ROPE_LOW)
    between = (1 - mix) * plain / ROPE_FACTOR + mix * plain
    return torch.where(turns < ROPE_LOW, plain / ROPE_FACTOR, torch.where(turns > ROPE_HIGH, plain, between))


def rotation(inverse: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [T, 1, head_dim] at positions [T]."""
    angles = positions[:, None].float() * inverse
    angles = torch.cat([angles, angles], -1)[:, None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [T, H, D] turned: the two halves of a head are the coordinates."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class RMSNorm(nn.Module):
    """x / rms(x) * weight, in float32 (Zhang and Sennrich 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
        return self.weight * wide.to(x.dtype)


class LlamaAttention(nn.Module):
    def __init__(self, c: T3Config) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(c.width, c.width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, layer: int, attend: Attend, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, HEAD_DIM)) for part in (self.q_proj(x), self.k_proj(x), self.v_proj(x)))
        return self.o_proj(attend(layer, rotate(q, cos, sin), rotate(k, cos, sin), v).flatten(1))


class LlamaMLP(nn.Module):
    def __init__(self, c: T3Config) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(c.width, c.inner, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(c.inner, c.width, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    def __init__(self, c: T3Config) -> None:
        super().__init__()
        self.self_attn, self.mlp = LlamaAttention(c), LlamaMLP(c)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(c.width), RMSNorm(c.width)

    def forward(self, x: Tensor, layer: int, attend: Attend, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), layer, attend, cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """The backbone of Chatterbox and of its multilingual sister."""

    inverse: Tensor

    def __init__(self, c: T3Config) -> None:
        super().__init__()
        self.layers = nn.ModuleList([LlamaLayer(c) for _ in range(c.layers)])
        self.norm = RMSNorm(c.width)
        with torch.device("cpu"):  # a formula, not a weight: it has its values even on the meta device
            self.register_buffer("inverse", frequencies(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Embeddings [T, D] at absolute positions [T] to hidden rows [T, D]."""
        cos, sin = (part.to(x.dtype) for part in rotation(self.inverse, positions))
        for i, layer in enumerate(self.layers):
            x = layer(x, i, attend, cos, sin)
        return self.norm(x)


class GPT2Attention(nn.Module):
    def __init__(self, c: T3Config) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(c.width, 3 * c.width), nn.Linear(c.width, c.width)

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, HEAD_DIM)) for part in self.c_attn(x).chunk(3, -1))
        return self.c_proj(attend(layer, q, k, v).flatten(1))


class GPT2MLP(nn.Module):
    def __init__(self, c: T3Config) -> None:
        super().__init__()
        self.c_fc, self.c_proj = nn.Linear(c.width, c.inner), nn.Linear(c.inner, c.width)
        self.act = nn.GELU(approximate="tanh")

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


class GPT2Layer(nn.Module):
    def __init__(self, c: T3Config) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(c.width, eps=EPS), nn.LayerNorm(c.width, eps=EPS)
        self.attn, self.mlp = GPT2Attention(c), GPT2MLP(c)

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        x = x + self.attn(self.ln_1(x), layer, attend)
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """Turbo's backbone: learned positions over everything, conditioning included."""

    def __init__(self, c: T3Config, positions: int) -> None:
        super().__init__()
        self.wpe = nn.Embedding(positions, c.width)
        self.h = nn.ModuleList([GPT2Layer(c) for _ in range(c.layers)])
        self.ln_f = nn.LayerNorm(c.width, eps=EPS)

    def forward(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Embeddings [T, D] at absolute positions [T] to hidden rows [T, D]."""
        x = x + self.wpe(positions)
        for i, layer in enumerate(self.h):
            x = layer(x, i, attend)
        return self.ln_f(x)


class Positions(nn.Module):
    """Learned positions, under the checkpoint's name."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(count, width)

    def forward(self, at: Tensor) -> Tensor:
        return self.emb(at)


class T3(nn.Module):
    """Embeddings, backbone and the head over speech tokens."""

    def __init__(self, c: T3Config, positions: int = LONGEST_TURBO) -> None:
        super().__init__()
        self.config = c
        self.cond_enc = Conditioning(c)
        self.tfmr = GPT2(c, positions) if c.turbo else Llama(c)
        self.text_emb, self.speech_emb = nn.Embedding(c.text_vocab, c.width), nn.Embedding(c.speech_vocab, c.width)
        self.text_pos_emb = None if c.turbo else Positions(c.text_positions, c.width)
        self.speech_pos_emb = None if c.turbo else Positions(c.speech_positions, c.width)
        self.speech_head = nn.Linear(c.width, c.speech_vocab, bias=c.turbo)

    def condition(self, speaker: Tensor, prompt: Tensor, emotion: Tensor) -> Tensor:
        """Speakers [B, 256], prompts of speech tokens [B, P], emotions [B] to prefixes [B, n, D]."""
        return self.cond_enc(speaker, self._prompt(prompt), emotion)

    def _prompt(self, tokens: Tensor) -> Tensor:
        return self.speech(tokens, torch.arange(tokens.shape[1], device=tokens.device))

    def text(self, ids: Tensor, at: Tensor, guided: Tensor) -> Tensor:
        """Text tokens [T] at text positions [T]; where `guided` [T] is False the lane knows the positions only."""
        rows = self.text_emb(ids)
        if self.text_pos_emb is None:
            return rows
        return torch.where(guided[:, None], rows, 0.0) + self.text_pos_emb(at)

    def speech(self, ids: Tensor, at: Tensor) -> Tensor:
        """Speech tokens [..., T] at speech positions [T]."""
        rows = self.speech_emb(ids)
        return rows if self.speech_pos_emb is None else rows + self.speech_pos_emb(at)

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, D] to float32 [N, speech tokens]."""
        return self.speech_head(hidden).float()


def guide(cond: Tensor, uncond: Tensor, weight: Tensor) -> Tensor:
    """Classifier-free guidance of logits [N, V] with weights [N]: cond + w (cond - uncond) (Ho and Salimans 2022)."""
    return cond + weight[:, None] * (cond - uncond)


def causal(network: T3, embeds: Tensor) -> Tensor:
    """Hidden rows [T, D] of one sequence of embeddings [T, D], without a cache: for tests and for checks."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)

    return network.tfmr(embeds, torch.arange(len(embeds), device=embeds.device), attend)
