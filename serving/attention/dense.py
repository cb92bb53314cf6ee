"""Attention without a cache, for encoders."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from serving.alignment import aligned

CHUNK = 512  # queries whose scores stay in a core's cache


def dense(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, mask: Tensor | None = None) -> Tensor:
    """Attention of q [B, H, T, D] over k, v [B, Hk, L, D], scaled by D ** -0.5, to [B, H, T, D].

    `mask` is True where a key may be seen, and broadcasts to [B, H, T, L]. On a CPU a sample is computed by itself, so
    that its bits do not depend on the batch; a batch would not be faster there. A sample padded to another length
    is another sample.
    """
    seen = _seen(q, k, causal, mask)
    if q.device.type != "cpu":
        return _fused(q, k, v, seen)
    one = _fused if q.dtype == torch.float32 else _chunked
    samples = zip(q.split(1), k.split(1), v.split(1), [None] * len(q) if seen is None else seen.split(1), strict=True)
    found = [one(aligned(qi), aligned(ki), aligned(vi), mi) for qi, ki, vi, mi in samples]
    return found[0] if len(found) == 1 else torch.cat(found)


def _seen(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None) -> Tensor | None:
    """The mask of every sample, [B, H, T, L] bool (expanded, not copied), or None."""
    if causal:
        before = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        mask = before if mask is None else mask & before
    return None if mask is None else mask.expand(*q.shape[:3], k.shape[2])


def _fused(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=q.shape[1] != k.shape[1])


def _chunked(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    """One sample by explicit products: torch's fused kernel has no fast path for bfloat16 on a CPU."""
    group = q.shape[1] // k.shape[1]
    keys = k[0].repeat_interleave(group, 0).transpose(1, 2)  # [H, D, L]
    values = v[0].repeat_interleave(group, 0)
    out = torch.empty_like(q)
    for at in range(0, q.shape[2], CHUNK):
        part = slice(at, at + CHUNK)
        weights = torch.bmm(q[0, :, part], keys) * q.shape[-1] ** -0.5
        if seen is not None:
            weights = weights.masked_fill(~seen[0, :, part], float("-inf"))
        out[0, :, part] = torch.bmm(weights.softmax(-1), values)
    return out
