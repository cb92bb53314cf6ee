"""T3's conditioning: a speaker, a prompt of speech tokens, an emotion, as embeddings in front of the text."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.chatterbox.config import SPEAKER, T3Config
from serving.attention import dense

HEADS = 4


class Attention(nn.Module):
    """Pre-norm attention with a residual; queries and keys share the norm (Perceiver, arXiv:2103.03206)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.proj_out = nn.Linear(width, width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """x [B, Q, D] attends to `seen` [B, L, D]."""
        normed = self.norm(seen)
        q, k, v = self.to_q(self.norm(x)), self.to_k(normed), self.to_v(normed)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v))
        return x + self.proj_out(dense(q, k, v).transpose(1, 2).flatten(2))


class Perceiver(nn.Module):
    """A sequence of any length to a fixed number of latents: one block, applied across and then within."""

    def __init__(self, queries: int, width: int) -> None:
        super().__init__()
        self.pre_attention_query = nn.Parameter(torch.empty(1, queries, width))
        self.attn = Attention(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] to [B, queries, D]."""
        latents = self.attn(self.pre_attention_query.expand(len(x), -1, -1), x)
        return self.attn(latents, latents)


class Conditioning(nn.Module):
    """The embeddings that come before the text. Turbo has neither perceiver nor emotion."""

    def __init__(self, c: T3Config) -> None:
        super().__init__()
        self.spkr_enc = nn.Linear(SPEAKER, c.width)
        self.perceiver = Perceiver(c.queries, c.width) if c.queries else None
        self.emotion_adv_fc = None if c.turbo else nn.Linear(1, c.width, bias=False)

    def forward(self, speaker: Tensor, prompt: Tensor, emotion: Tensor) -> Tensor:
        """Speakers [B, 256], embedded prompts [B, P, D], emotions [B] to [B, 1 + prompt + 1, D]."""
        parts = [self.spkr_enc(speaker)[:, None], prompt if self.perceiver is None else self.perceiver(prompt)]
        if self.emotion_adv_fc is not None:
            parts.append(self.emotion_adv_fc(emotion[:, None])[:, None])
        return torch.cat(parts, 1)
