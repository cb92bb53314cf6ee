"""The reference backend: torch's scaled_dot_product_attention, reading the pool in place wherever it can."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from serving.attention.layout import Layout


def attend(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attention of packed queries [T, H, D] over pools [pages, Hk, page_size, D]; padding rows give zeros."""
    out = torch.zeros_like(q)
    done = _in_runs(q, k, v, layout, out) if layout.single and layout.ring is None else set()
    for i in range(len(layout.first)):
        if i not in done:
            _one(q, k, v, layout, i, out)
    return out


def _one(q: Tensor, k: Tensor, v: Tensor, layout: Layout, i: int, out: Tensor) -> None:
    lo, hi = int(layout.starts[i]), int(layout.starts[i + 1])
    first, stored = int(layout.first[i]), int(layout.lengths[i])
    if lo == hi or not stored:
        return
    seen = layout.visible(first if layout.causal else stored, stored)
    mask = layout.mask(first, hi - lo, seen, q.device) if layout.causal and hi - lo > 1 else None
    keys, values = layout.load(k, i, seen), layout.load(v, i, seen)
    out[lo:hi] = _sdpa(q[lo:hi].transpose(0, 1), keys, values, mask, layout.scale).transpose(0, 1)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """[.., H, T, D] over [.., Hk, L, D]; the cache's dtype is the one computed in."""
    grouped = q.shape[-3] != k.shape[-3]
    if grouped and q.dim() == 3:  # torch's fused kernel takes groups only in a batch
        return _sdpa(q[None], k[None], v[None], mask, scale)[0]
    found = F.scaled_dot_product_attention(q.to(k.dtype), k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
    return found.to(q.dtype)


def _in_runs(q: Tensor, k: Tensor, v: Tensor, layout: Layout, out: Tensor) -> set[int]:
    """One call for all sequences whose single pages are neighbours in the pool; returns those it served.

    Neighbours need no copy: a slice of the pool is their batch. The mask hides what lies past each length.
    """
    fits = np.flatnonzero((layout.lengths <= layout.page_size) & (layout.lengths > 0))
    if len(fits) < 2:
        return set()
    first = layout.table[layout.seqs, 0]
    order = fits[np.argsort(first[fits], kind="stable")]
    pages = first[order]
    done: set[int] = set()
    for run in np.split(np.arange(len(order)), np.flatnonzero(np.diff(pages) != 1) + 1):
        if len(run) > 1:
            _run(q, k, v, layout, order[run], int(pages[run[0]]), out)
            done.update(order[run].tolist())
    return done


def _run(q: Tensor, k: Tensor, v: Tensor, layout: Layout, rows: np.ndarray, page: int, out: Tensor) -> None:
    lengths = layout.lengths[rows]
    width = int(lengths.max())
    at = torch.from_numpy(layout.starts[rows]).to(q.device)
    mask = None
    if int(lengths.min()) < width:
        mask = torch.from_numpy(np.arange(width) < lengths[:, None])[:, None, None].to(q.device)
    held = slice(page, page + len(rows))
    found = _sdpa(q[at][:, :, None], k[held, :, :width], v[held, :, :width], mask, layout.scale)
    out[at] = found[:, :, 0]


def scores(q: Tensor, k: Tensor, layout: Layout, heads: list[int]) -> Tensor:
    """Scaled dot products before the softmax, [len(heads), T, L] with L the longest stored; -inf where
    unseen.
    """
    width = int(layout.lengths.max(initial=0))
    out = q.new_full((len(heads), q.shape[0], width), float("-inf"))
    group = q.shape[1] // k.shape[1]
    for i in range(len(layout.first)):
        lo, hi, stored = int(layout.starts[i]), int(layout.starts[i + 1]), int(layout.lengths[i])
        if lo == hi or not stored:
            continue
        seen = layout.visible(0, stored)
        keys = layout.load(k, i, seen)[[h // group for h in heads]]  # [heads, L, D]
        found = torch.bmm(q[lo:hi, heads].transpose(0, 1), keys.to(q.dtype).transpose(1, 2)) * layout.scale
        if layout.causal:
            mask = layout.mask(int(layout.first[i]), hi - lo, seen, q.device)
            found = found.masked_fill(~mask, float("-inf"))
        out[:, lo:hi, :stored] = found
    return out
