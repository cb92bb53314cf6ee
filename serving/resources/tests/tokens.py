"""Sequences of made-up queries, keys and values, fed to a cache as a model would."""

from __future__ import annotations

import torch

from serving.resources import PagedKV
from serving.resources.tests.batches import batch


def make(**changes):
    options = {"layers": 2, "kv_heads": 2, "head_dim": 8, "page_size": 16, "pages": 40, "slots": 6, "max_len": 96}
    return PagedKV(**{**options, **changes})


class Tokens:
    """Queries, keys and values of one sequence, made once: what a model would compute for its tokens."""

    def __init__(self, count, seed, heads=4, kv_heads=2, dim=8):
        gen = torch.Generator().manual_seed(seed)
        self.q = torch.randn(count, heads, dim, generator=gen)
        self.k = torch.randn(count, kv_heads, dim, generator=gen)
        self.v = torch.randn(count, kv_heads, dim, generator=gen)

    def naive(self, window=None, sinks=0):
        """[T, H, D] causal attention in float64, from its definition."""
        group = self.q.shape[1] // self.k.shape[1]
        k, v = (x.double().repeat_interleave(group, 1) for x in (self.k, self.v))
        weights = torch.einsum("qhd,khd->hqk", self.q.double(), k) * self.q.shape[-1] ** -0.5
        at = torch.arange(len(k))
        seen = at <= at[:, None]
        if window is not None:
            seen &= (at > at[:, None] - window) | (at < sinks)
        return torch.einsum("hqk,khd->qhd", weights.masked_fill(~seen, float("-inf")).softmax(-1), v).float()


def run(kv, tokens, schedule, *, padding=0, done=None):
    """Feed the sequences {slot: Tokens} by a schedule of {slot: units}; the outputs by slot."""
    done = dict.fromkeys(tokens, 0) if done is None else done
    out = {slot: [] for slot in tokens}
    for step in schedule:
        slots, units = list(step), list(step.values())
        total = sum(units)
        b = batch(slots, units, size=len(slots) + padding, total=total + padding)
        b.use["kv"] = kv.plan(b, write=True)
        parts = [[getattr(tokens[s], name)[done[s] : done[s] + u] for s, u in step.items()] for name in ("q", "k", "v")]
        pad = [torch.full((padding, *p[0].shape[1:]), 7.0) for p in parts]
        q, k, v = (torch.cat([*p, extra]) for p, extra in zip(parts, pad, strict=True))
        for layer in range(len(kv.pool.k)):
            got = b.use["kv"].attend(layer, q, k, v)
        kv.commit(b, b.units)
        at = 0
        for slot, unit in step.items():
            out[slot].append(got[at : at + unit])
            at, done[slot] = at + unit, done[slot] + unit
        assert not got[total:].any()
    return {slot: torch.cat(parts) for slot, parts in out.items() if parts}


def admit(kv, *slots, units=80, lanes=("main",)):
    for slot in slots:
        assert kv.reserve(f"r{slot}", lanes, units)
        kv.bind(slot, f"r{slot}")


def chunks(total, size):
    return [min(size, total - at) for at in range(0, total, size)]
