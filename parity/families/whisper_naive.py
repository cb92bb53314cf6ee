"""Whisper's decoder with the plainest attention there is: one sequence, everything at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from models.whisper.modules import TextDecoder


def naive_decoder(decoder: TextDecoder, ids: Tensor, features: Tensor) -> Tensor:
    """Last hidden states [T, D] of ids [T] over the encoder's features [1, L, D]."""
    stored = {layer: (k, v) for layer, k, v in decoder.cross_keys(features[0])}

    def heads_first(*parts: Tensor) -> list[Tensor]:
        return [part.transpose(0, 1)[None] for part in parts]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*heads_first(q, k, v), is_causal=True)[0].transpose(0, 1)

    def cross(layer: int, q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*heads_first(q, *stored[layer]))[0].transpose(0, 1)

    return decoder(ids, torch.arange(len(ids)), attend, cross)
