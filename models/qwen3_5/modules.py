"""The language model: gated DeltaNet layers with a full-attention layer after every third (Qwen3.5, Qwen3.8).

Layers keep the reference's names; projections of the same input are one matrix (see `weights`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.components.layers.attention import Attend, Attention
from models.components.layers.deltanet import GatedDeltaNet, Recurrence
from models.components.layers.mlp import SwiGLU
from models.components.layers.norms import RMSNorm
from models.components.layers.rotary import Rotary, interleaved
from models.qwen3_5.config import LINEAR, Qwen35Config


class Layer(nn.Module):
    """Pre-norm: a token mixer of either kind, then the MLP."""

    def __init__(self, config: Qwen35Config, index: int) -> None:
        super().__init__()
        self.index, self.linear = index, config.layers[index] == LINEAR
        if self.linear:
            self.linear_attn = GatedDeltaNet(config.delta)
        else:
            self.self_attn = Attention(config.attention)
        self.mlp = SwiGLU(config.dim, config.hidden)
        self.input_layernorm = RMSNorm(config.dim, config.eps, offset=1.0)
        self.post_attention_layernorm = RMSNorm(config.dim, config.eps, offset=1.0)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], attend: Attend, recur: Recurrence) -> Tensor:
        """[T, D] of x [T, D]."""
        normed = self.input_layernorm(x)
        if self.linear:
            x = x + self.linear_attn(normed, self.index, recur)
        else:
            x = x + self.self_attn(normed, self.index, turn, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen35(nn.Module):
    """Token ids to hidden rows; `lm_head` makes logits of those that are needed."""

    def __init__(self, config: Qwen35Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.dim)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(len(config.layers)))
        self.norm = RMSNorm(config.dim, config.eps, offset=1.0)
        self.rotary = Rotary(config.rotary_dim, config.rope_base, interleaved(config.sections))
        self.lm_head = nn.Linear(config.dim, config.vocab, bias=False)
        if config.tied:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend, recur: Recurrence) -> Tensor:
        """Hidden rows [T, D] of packed tokens [T] at positions [axes, T]."""
        x = self.embed_tokens(ids)
        turn = self.rotary(positions)
        for layer in self.layers:
            x = layer(x, turn, attend, recur)
        return self.norm(x)

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_tokens.weight.dtype
