"""The Triton backend: one kernel over paged keys for decoding and prefill, grouped heads, windows and sinks.

A program computes a tile of one sequence's queries for one key head, with the softmax kept up to date block by block
(Milakov and Gimelshein 2018; Dao et al. 2022). On a CPU it runs under Triton's interpreter (TRITON_INTERPRET=1).
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from serving.attention.layout import Layout

ROWS = 16  # least rows of a product
BLOCK = 64  # keys a turn


@triton.jit
def _locate(  # noqa: ANN202
    table, seq, stride_table, at, PAGE: tl.constexpr, RING: tl.constexpr, KEPT: tl.constexpr, mask
):
    """The page of each position."""
    column = at // PAGE
    if RING > 0:
        column = tl.minimum(column, KEPT) + tl.maximum(column - KEPT, 0) % RING
    return tl.load(table + seq * stride_table + column, mask=mask, other=0)


@triton.jit
def _fold(score, values, high, total, mixed):  # noqa: ANN202
    """A block of scores and values into the running softmax: its maximum, its sum, the weighted values."""
    best = tl.maximum(high, tl.max(score, 1))
    base = tl.where(best == float("-inf"), 0.0, best)
    weight = tl.exp(score - base[:, None])
    before = tl.exp(high - base)
    total = total * before + tl.sum(weight, 1)
    mixed = mixed * before[:, None] + tl.dot(weight, values, input_precision="ieee")
    return best, total, mixed


@triton.jit
def _attend(  # noqa: ANN202
    q,
    k,
    v,
    out,
    tiles,
    table,
    scale,
    stride_token,
    stride_head,
    stride_page,
    stride_key_head,
    stride_table,
    PAGE: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    KEPT: tl.constexpr,
    RING: tl.constexpr,
):
    tile, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(tiles + tile * 5)
    count = tl.load(tiles + tile * 5 + 1)
    seq = tl.load(tiles + tile * 5 + 2)
    first = tl.load(tiles + tile * 5 + 3)
    length = tl.load(tiles + tile * 5 + 4)
    rows = tl.arange(0, M)
    token, member, dims = rows // GROUP, rows % GROUP, tl.arange(0, WIDTH)
    real = (token < count)[:, None] & (dims < DIM)[None, :]
    place = (start + token)[:, None] * stride_token + (head * GROUP + member)[:, None] * stride_head + dims[None, :]
    queries = tl.load(q + place, mask=real, other=0.0).to(tl.float32)
    query = first + token
    high = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, WIDTH], tl.float32)
    begin = tl.maximum(first - WINDOW + 1, 0) // N * N if WINDOW > 0 else 0
    sinks = tl.minimum((SINKS + N - 1) // N * N, begin)  # blocks before the window that hold sinks
    for turn in range(0, sinks + length - begin, N):
        at = tl.where(turn < sinks, turn, turn - sinks + begin) + tl.arange(0, N)
        stored = at < length
        pages = _locate(table, seq, stride_table, at, PAGE, RING, KEPT, stored)
        where = pages * stride_page + head * stride_key_head + (at % PAGE) * DIM
        held = stored[:, None] & (dims < DIM)[None, :]
        keys = tl.load(k + where[:, None] + dims[None, :], mask=held, other=0.0).to(tl.float32)
        values = tl.load(v + where[:, None] + dims[None, :], mask=held, other=0.0).to(tl.float32)
        seen = stored[None, :] & (token < count)[:, None]
        if CAUSAL:
            seen = seen & (at[None, :] <= query[:, None])
        if WINDOW > 0:
            seen = seen & ((at[None, :] > query[:, None] - WINDOW) | (at[None, :] < SINKS))
        score = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        high, total, mixed = _fold(tl.where(seen, score, float("-inf")), values, high, total, mixed)
    found = mixed / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + place, found.to(out.dtype.element_ty), mask=real)


def attend(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """Attention of packed queries [T, H, D] over pools [pages, Hk, page_size, D]; padding rows give zeros."""
    q = q.contiguous()
    out = torch.zeros_like(q)
    heads, dim = k.shape[1], q.shape[2]
    group = q.shape[1] // heads
    rows = max(ROWS, triton.next_power_of_2(group))
    tiles = torch.from_numpy(_tiles(layout, rows // group)).to(q.device)
    if len(tiles):
        ring = layout.ring
        table = torch.from_numpy(layout.table).to(q.device)
        _attend[(len(tiles), heads)](
            *(q, k, v, out, tiles, table, layout.scale),
            *(q.stride(0), q.stride(1), k.stride(0), k.stride(1), table.stride(0)),
            PAGE=layout.page_size,
            GROUP=group,
            DIM=dim,
            WIDTH=max(16, triton.next_power_of_2(dim)),
            M=rows,
            N=BLOCK,
            CAUSAL=layout.causal,
            WINDOW=ring.window if ring else 0,
            SINKS=ring.sinks if ring else 0,
            KEPT=ring.kept if ring else 0,
            RING=ring.turns if ring else 0,
        )
    return out


def _tiles(layout: Layout, size: int) -> np.ndarray:
    """[n, 5]: first token, tokens, sequence, position of the first token, keys stored; `size` tokens a tile.

    A reader's queries all see what the next token would.
    """
    counts = np.diff(layout.starts)
    per = np.where(layout.lengths > 0, -(-counts // size), 0)
    owner = np.repeat(np.arange(len(counts)), per)
    ahead = (np.arange(len(owner)) - np.repeat(np.cumsum(per) - per, per)) * size
    first = layout.first[owner] + ahead if layout.causal else layout.lengths[owner]
    left = np.minimum(size, counts[owner] - ahead)
    columns = [layout.starts[owner] + ahead, left, layout.seqs[owner], first, layout.lengths[owner]]
    return np.ascontiguousarray(np.stack(columns, 1), dtype=np.int64)
