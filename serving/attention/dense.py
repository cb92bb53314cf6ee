"""Attention without a cache, for encoders."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 512  # queries whose scores stay in a core's cache


def dense(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, mask: Tensor | None = None) -> Tensor:
    """Attention of q [B, H, T, D] over k, v [B, Hk, L, D], scaled by D ** -0.5, to [B, H, T, D].

    `mask` is True where a key may be seen, broadcastable to [B, H, T, L]. On a CPU, bfloat16 and anything
    that a mask does not touch goes through explicit products of one sample and at most 512 queries: the shape
    of each product is the sample's own, so that its bits do not depend on the batch, and bfloat16 is faster
    than torch's fused kernel, which has no fast CPU path for it.
    """
    if q.device.type != "cpu" or q.dtype == torch.float32:
        return _fused(q, k, v, causal, mask)
    return _chunked(q, k, v, causal, mask)


def _fused(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped)


def _chunked(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
    group = q.shape[1] // k.shape[1]
    out = torch.empty_like(q)
    seen = _seen(q, k, causal, mask)
    for i in range(q.shape[0]):
        keys = k[i].repeat_interleave(group, 0).transpose(1, 2)  # [H, D, L]
        values = v[i].repeat_interleave(group, 0)
        for at in range(0, q.shape[2], CHUNK):
            part = slice(at, at + CHUNK)
            weights = torch.bmm(q[i, :, part], keys) * q.shape[-1] ** -0.5
            if seen is not None:
                weights = weights.masked_fill(~seen[i, :, part], float("-inf"))
            out[i, :, part] = torch.bmm(weights.softmax(-1), values)
    return out


def _seen(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None) -> Tensor | None:
    """The mask of every sample, [B, H, T, L] bool (expanded, not copied), or None."""
    if causal:
        after = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        mask = after if mask is None else mask & after
    return None if mask is None else mask.expand(*q.shape[:3], k.shape[2])
