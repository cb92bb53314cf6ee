"""The invariant backend: a token's result never depends on batch, chunking, padding or what others do.

Every matrix product has a shape that follows from the token's own position: queries go through in tiles of 16
rows, the token at position p always in row p % 16 of tile p // 16, and a tile's keys have one width. A row of
a product does not depend on the other rows, so the bits are the same however the tokens were grouped. Without
positions (reading a cache that another step wrote) each query is a product of its own over exactly what is
stored.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from serving.alignment import LINE
from serving.attention.layout import Layout

TILE = 16


def attend(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attention of packed queries [T, H, D] over pools [pages, Hk, page_size, D]; padding rows give zeros."""
    out = torch.zeros_like(q)
    one = _causal if layout.causal else _whole
    for i in range(len(layout.first)):
        if layout.starts[i] < layout.starts[i + 1] and layout.lengths[i]:
            one(q, k, v, layout, i, out)
    return out


def _causal(q: Tensor, k: Tensor, v: Tensor, layout: Layout, i: int, out: Tensor) -> None:
    at, stop, position = int(layout.starts[i]), int(layout.starts[i + 1]), int(layout.first[i])
    while at < stop:
        tile, row = divmod(position, TILE)
        count = min(TILE - row, stop - at)
        padded = q.new_zeros((TILE, *q.shape[1:]))
        padded[row : row + count] = q[at : at + count]
        seen = layout.visible(tile * TILE, min((tile + 1) * TILE, layout.widest))
        keys, values = _load(k, layout, i, seen), _load(v, layout, i, seen)
        if len(seen) > layout.page_size or layout.ring is not None:
            values[:, torch.from_numpy(seen >= layout.lengths[i])] = 0  # a copy, which may hold pages of others
        mask = layout.mask(tile * TILE, TILE, seen, q.device)
        found = _products(padded, keys, values, mask, layout.scale)
        out[at : at + count] = found[row : row + count]
        at, position = at + count, position + count


def _whole(q: Tensor, k: Tensor, v: Tensor, layout: Layout, i: int, out: Tensor) -> None:
    stored = int(layout.lengths[i])
    seen = layout.visible(stored, stored)
    keys, values = _load(k, layout, i, seen), _load(v, layout, i, seen)
    for t in range(int(layout.starts[i]), int(layout.starts[i + 1])):
        out[t] = _products(q[t : t + 1], keys, values, None, layout.scale)[0]


def _load(pool: Tensor, layout: Layout, i: int, seen: np.ndarray) -> Tensor:
    """Keys [Hk, L, D] whose place in memory does not depend on the page that they lie in."""
    found = layout.load(pool, i, seen)
    if layout.page_size * pool.shape[-1] * pool.element_size() % LINE:
        return found.contiguous() if not found.is_contiguous() else found.clone()
    return found


def _products(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, scale: float) -> Tensor:
    """[T, H, D] over [Hk, L, D]: softmax(q k^T scale) v with explicit products; `seen` [T, L] is the mask."""
    rows, heads, width = q.shape
    kv_heads = k.shape[0]
    group = heads // kv_heads
    grouped = q.view(rows, kv_heads, group, width).permute(1, 2, 0, 3).reshape(kv_heads, group * rows, width)
    weights = torch.bmm(grouped.to(k.dtype), k.transpose(1, 2)).float() * scale  # [Hk, group * T, L]
    if seen is not None:
        weights = weights.view(kv_heads, group, rows, -1).masked_fill(~seen, float("-inf")).flatten(1, 2)
    found = torch.bmm(weights.softmax(-1).to(v.dtype), v)  # [Hk, group * T, D]
    return found.view(kv_heads, group, rows, width).permute(2, 0, 1, 3).reshape(rows, heads, width).to(q.dtype)
