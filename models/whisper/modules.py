"""The network in openai-whisper's parameter names; the caller gives the attention over stored keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.whisper.config import WhisperConfig
from serving.attention import dense

# (layer, q, k, v) -> attended, and (layer, q) -> attended; all [T, heads, head_dim]
SelfAttention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
CrossAttention = Callable[[int, Tensor], Tensor]


class MultiHeadAttention(nn.Module):
    """The projections; keys have no bias. Heads are split off the last dimension."""

    def __init__(self, state: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(state, state)
        self.key = nn.Linear(state, state, bias=False)
        self.value = nn.Linear(state, state)
        self.out = nn.Linear(state, state)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of [..., D]: each [..., heads, head_dim]."""
        return self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))


class Block(nn.Module):
    """Attention and MLP of one layer, each behind its norm and around its residual."""

    def __init__(self, state: int, heads: int) -> None:
        super().__init__()
        self.attn = MultiHeadAttention(state, heads)
        self.attn_ln = nn.LayerNorm(state)
        self.mlp = nn.Sequential(nn.Linear(state, 4 * state), nn.GELU(), nn.Linear(4 * state, state))
        self.mlp_ln = nn.LayerNorm(state)


class EncoderBlock(Block):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2) for t in self.attn.project(self.attn_ln(x)))  # [B, heads, T, head_dim]
        attended = dense(q, k, v)
        x = x + self.attn.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_ln(x))


class DecoderBlock(Block):
    def __init__(self, state: int, heads: int) -> None:
        super().__init__(state, heads)
        self.cross_attn = MultiHeadAttention(state, heads)
        self.cross_attn_ln = nn.LayerNorm(state)

    def forward(self, x: Tensor, layer: int, attend: SelfAttention, cross: CrossAttention) -> Tensor:
        x = x + self.attn.out(attend(layer, *self.attn.project(self.attn_ln(x))).flatten(-2))
        q = self.cross_attn.split(self.cross_attn.query(self.cross_attn_ln(x)))
        x = x + self.cross_attn.out(cross(layer, q).flatten(-2))
        return x + self.mlp(self.mlp_ln(x))


class AudioEncoder(nn.Module):
    positional_embedding: Tensor

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        state, heads = config.n_audio_state, config.n_audio_head
        self.conv1 = nn.Conv1d(config.n_mels, state, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(state, state, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positional_embedding", torch.zeros(config.n_audio_ctx, state))
        self.blocks = nn.ModuleList(EncoderBlock(state, heads) for _ in range(config.n_audio_layer))
        self.ln_post = nn.LayerNorm(state)

    def forward(self, mel: Tensor) -> Tensor:
        """Features [B, T, D] of log-mel windows [B, n_mels, 2 * T], T at most n_audio_ctx."""
        x = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2)
        x = x + self.positional_embedding[: x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x)


class TextDecoder(nn.Module):
    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        state, heads = config.n_text_state, config.n_text_head
        self.token_embedding = nn.Embedding(config.n_vocab, state)
        self.positional_embedding = nn.Parameter(torch.zeros(config.n_text_ctx, state))
        self.blocks = nn.ModuleList(DecoderBlock(state, heads) for _ in range(config.n_text_layer))
        self.ln = nn.LayerNorm(state)
        self.head = nn.Linear(state, config.n_vocab, bias=False)
        self.head.weight = self.token_embedding.weight

    def forward(self, ids: Tensor, positions: Tensor, attend: SelfAttention, cross: CrossAttention) -> Tensor:
        """Last hidden states [T, D] of packed tokens [T] at positions [T]; `head` makes logits of them."""
        x = self.token_embedding(ids) + self.positional_embedding[positions]
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, attend, cross)
        return self.ln(x)

    def _layers(self) -> Iterator[DecoderBlock]:
        return (block for block in self.blocks if isinstance(block, DecoderBlock))

    def cross_keys(self, features: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Layer, keys and values [..., heads, head_dim] of features [..., D]: what `cross` reads."""
        for layer, block in enumerate(self._layers()):
            attention = block.cross_attn
            yield layer, attention.split(attention.key(features)), attention.split(attention.value(features))


class Whisper(nn.Module):
    """Encoder and decoder under openai-whisper's names; the graph's nodes run its parts."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.encoder = AudioEncoder(config)
        self.decoder = TextDecoder(config)
