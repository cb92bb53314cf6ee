"""One contract for every backend: attention from its definition, over every way that keys may lie in pages."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from serving.attention import BACKENDS, Layout, Ring, attend_with
from serving.errors import SetupError

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are first imported

HEADS, PAGES = 4, 40


class Fake:
    """FlashInfer's wrapper by its documentation, so that what is planned can be checked without a GPU."""

    def __init__(self, workspace, kind):
        assert kind == "HND"

    def plan(self, queries, pages, indices, last, heads, kv_heads, dim, size, *, causal, sm_scale, q_data_type):
        assert {part.dtype for part in (queries, pages, indices, last)} == {torch.int32}
        self.plan_ = queries.tolist(), pages.tolist(), indices.tolist(), last.tolist(), size, causal, sm_scale

    def run(self, q, cache):
        queries, pages, indices, last, size, causal, scale = self.plan_
        out = torch.zeros_like(q)
        for i in range(len(last)):
            held = indices[pages[i] : pages[i + 1]]
            length = max(0, (len(held) - 1) * size + last[i])
            k, v = (pool[held].transpose(0, 1).flatten(1, 2)[:, :length] for pool in cache)
            at = slice(queries[i], queries[i + 1])
            first = length - (queries[i + 1] - queries[i]) if causal else length
            if length:
                out[at] = naive(q[at], k, v, first, scale)
        return out


@pytest.fixture(params=sorted(BACKENDS))
def backend(request, monkeypatch):
    if request.param == "flashinfer":
        monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=Fake))
        monkeypatch.delitem(sys.modules, "serving.attention.flashinfer", raising=False)
    yield attend_with(request.param, "fast")
    sys.modules.pop("serving.attention.flashinfer", None)


def naive(q, k, v, first, scale, window=None, sinks=0):
    """q [T, H, D] from position `first` over k, v [Hk, L, D]; a reader's `first` is past every key."""
    group = q.shape[1] // k.shape[0]
    k, v = (x.double().repeat_interleave(group, 0) for x in (k, v))
    weights = torch.einsum("qhd,hkd->hqk", q.double(), k) * scale
    key, query = torch.arange(k.shape[1]), torch.arange(first, first + len(q))[:, None]
    seen = key <= query
    if window is not None:
        seen &= (key > query - window) | (key < sinks)
    return torch.einsum("hqk,hkd->qhd", weights.masked_fill(~seen, float("-inf")).softmax(-1), v).float()


def place(keys, page_size, ring=None):
    """Pools [pages, Hk, page_size, D] and a table that hold these sequences [(k, v) of [Hk, L, D]], pages shuffled.

    Whatever nobody stored is poison.
    """
    kv_heads, dim = keys[0][0].shape[0], keys[0][0].shape[2]
    pools = torch.full((2, PAGES, kv_heads, page_size, dim), 1e4)
    columns = max(-(-k.shape[1] // page_size) for k, _ in keys) if ring is None else ring.pages
    table = np.zeros((len(keys) + 1, columns), np.int64)
    free = iter(np.random.default_rng(0).permutation(np.arange(1, PAGES)).tolist())
    for seq, pair in enumerate(keys, 1):
        for at in range(pair[0].shape[1]):
            column = at // page_size if ring is None else int(ring.column(np.array(at // page_size)))
            table[seq, column] = table[seq, column] or next(free)
            pools[:, table[seq, column], :, at % page_size] = torch.stack([x[:, at] for x in pair])
    return pools, table


def check(backend, units, lengths, *, page_size=16, kv_heads=2, dim=8, causal=True, ring=None, padding=2):
    gen = torch.Generator().manual_seed(1)
    keys = [tuple(torch.randn(2, kv_heads, length, dim, generator=gen)) for length in lengths]
    order = np.random.default_rng(2).permutation(len(units))
    pools, table = place([keys[i] for i in order], page_size, ring)
    starts = np.concatenate([[0], np.cumsum(units)])
    seqs, stored = np.argsort(order) + 1, np.array(lengths)
    first = stored - np.array(units) if causal else stored
    scale = 0.3
    layout = Layout(starts, first, stored, seqs, table, page_size, causal, scale, ring)
    q = torch.randn(int(starts[-1]) + padding, HEADS, dim, generator=gen)
    got = backend(q, *pools, layout)
    window, sinks = (ring.window, ring.sinks) if ring else (None, 0)
    for i in range(len(units)):
        part = slice(starts[i], starts[i + 1])
        want = naive(q[part], *keys[i], int(first[i]), scale, window, sinks)
        torch.testing.assert_close(got[part], want, atol=3e-6, rtol=1e-5)
    assert not got[starts[-1] :].any()


@pytest.mark.parametrize("page_size", [4, 16, 128])
def test_decoding(backend, page_size):
    check(backend, [1, 1, 1], [1, 33, 16], page_size=page_size)


@pytest.mark.parametrize("page_size", [4, 16, 128])
def test_prefill_in_chunks(backend, page_size):
    check(backend, [20, 1, 7, 33], [20, 30, 45, 33], page_size=page_size)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("dim", [8, 24])
def test_grouped_heads(backend, kv_heads, dim):
    check(backend, [3, 1], [17, 9], kv_heads=kv_heads, dim=dim)


def test_reading_sees_everything(backend):
    check(backend, [1, 4, 18], [25, 8, 40], causal=False)


@pytest.mark.parametrize(("window", "sinks"), [(10, 0), (5, 3), (70, 2)])
def test_windows_and_sinks(backend, window, sinks):
    if type(backend).__name__ == "FlashInfer":
        with pytest.raises(SetupError, match="cannot read a ring"):
            check(backend, [1], [20], page_size=4, ring=Ring(window, sinks, 4, 8))
        return
    ring = Ring(window, sinks, 4, 8)
    check(backend, [1, 4, 2], [20, 23, 9], page_size=4, ring=ring)
    check(backend, [8, 1], [8, 60], page_size=4, ring=ring)


def test_a_sequence_without_keys_gives_zeros(backend):
    layout = Layout(
        np.array([0, 2]), np.zeros(1, int), np.zeros(1, int), np.zeros(1, int), np.zeros((1, 1), int), 4, False, 1.0
    )
    pool = torch.ones(1, 1, 4, 8)
    assert not backend(torch.ones(2, 1, 8), pool, pool, layout).any()


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    monkeypatch.delitem(sys.modules, "serving.attention.flashinfer", raising=False)
    with pytest.raises(SetupError, match=r"multimodal-toolkit\[cuda\]"):
        attend_with("flashinfer", "fast")
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "serving.attention.triton", raising=False)
    with pytest.raises(SetupError, match=r"multimodal-toolkit\[triton\]"):
        attend_with("triton", "fast")
