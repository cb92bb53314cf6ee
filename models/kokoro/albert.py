"""PL-BERT: an ALBERT whose one layer runs twelve times over phonemes. transformers' parameter names, no pooler."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from models.kokoro.config import BertConfig
from serving.attention import dense

EPS = 1e-12


class Embeddings(nn.Module):
    def __init__(self, config: BertConfig, tokens: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(tokens, config.embedding_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.embedding_size)
        self.token_type_embeddings = nn.Embedding(2, config.embedding_size)
        self.LayerNorm = nn.LayerNorm(config.embedding_size, eps=EPS)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.position_embeddings.weight[: tokens.shape[1]]
        x = self.word_embeddings(tokens) + self.token_type_embeddings.weight[0]
        return self.LayerNorm(x + positions)


class Attention(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=EPS)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (self._split(project(x)) for project in (self.query, self.key, self.value))
        mixed = dense(q, k, v, mask=seen).transpose(1, 2).flatten(2)
        return self.LayerNorm(x + self.dense(mixed))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)  # [B, H, T, D]


class Layer(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.full_layer_layer_norm = nn.LayerNorm(config.hidden_size, eps=EPS)
        self.attention = Attention(config)
        self.ffn = nn.Linear(config.hidden_size, config.intermediate_size)
        self.ffn_output = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.attention(x, seen)
        wide = F.gelu(self.ffn(x), approximate="tanh")
        return self.full_layer_layer_norm(self.ffn_output(wide) + x)


class LayerGroup(nn.Module):
    """The one layer, two lists down, where the checkpoint has it."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.albert_layers = nn.ModuleList([Layer(config)])

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        for layer in self.albert_layers:
            x = layer(x, seen)
        return x


class Encoder(nn.Module):
    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.repeats = config.num_hidden_layers
        self.embedding_hidden_mapping_in = nn.Linear(config.embedding_size, config.hidden_size)
        self.albert_layer_groups = nn.ModuleList([LayerGroup(config)])

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.embedding_hidden_mapping_in(x)
        for _ in range(self.repeats):
            x = self.albert_layer_groups[0](x, seen)
        return x


class Albert(nn.Module):
    """tokens [B, T] int64, mask [B, 1, T] (1 where real) -> [B, T, hidden]."""

    def __init__(self, config: BertConfig, tokens: int) -> None:
        super().__init__()
        self.embeddings = Embeddings(config, tokens)
        self.encoder = Encoder(config)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        seen = (mask > 0)[:, None]  # [B, 1, 1, T]
        # NOTE: a sink row has length 0; it looks at everything, since a softmax over nothing is not a number.
        return self.encoder(self.embeddings(tokens), seen | ~seen.any(-1, keepdim=True))
