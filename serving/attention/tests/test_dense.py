"""Dense attention: its definition, masks, and independence of the batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from serving.attention import dense


def naive(q, k, v, seen=None):
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    weights = torch.einsum("bhqd,bhkd->bhqk", q.double(), k) * q.shape[-1] ** -0.5
    if seen is not None:
        weights = weights.masked_fill(~seen, float("-inf"))
    return torch.einsum("bhqk,bhkd->bhqd", weights.softmax(-1), v).to(q.dtype)


def tensors(batch, heads, kv_heads, queries, keys, dtype=torch.float32, dim=16):
    gen = torch.Generator().manual_seed(0)
    q = torch.randn(batch, heads, queries, dim, generator=gen)
    k, v = (torch.randn(batch, kv_heads, keys, dim, generator=gen) for _ in range(2))
    return q.to(dtype), k.to(dtype), v.to(dtype)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2)])
@pytest.mark.parametrize("queries", [1, 40, 700])
def test_equals_its_definition(dtype, atol, heads, kv_heads, queries):
    q, k, v = tensors(2, heads, kv_heads, queries, 700, dtype)
    mask = torch.ones(2, 1, 1, 700, dtype=torch.bool)
    mask[1, ..., 500:] = False
    torch.testing.assert_close(dense(q, k, v), naive(q, k, v), atol=atol, rtol=atol)
    torch.testing.assert_close(dense(q, k, v, mask=mask), naive(q, k, v, mask), atol=atol, rtol=atol)
    if queries == 700:
        before = torch.ones(700, 700, dtype=torch.bool).tril()
        torch.testing.assert_close(dense(q, k, v, causal=True), naive(q, k, v, before), atol=atol, rtol=atol)
        got = dense(q, k, v, causal=True, mask=mask)
        torch.testing.assert_close(got, naive(q, k, v, before & mask), atol=atol, rtol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "queries", "keys", "dim"), [(4, 1, 600, 64), (2, 33, 600, 16), (5, 2, 33, 7)])
def test_a_sample_does_not_depend_on_the_batch(dtype, heads, queries, keys, dim):
    torch.set_num_threads(2)
    q, k, v = tensors(5, heads, heads, queries, keys, dtype, dim)
    whole = dense(q, k, v)
    for start, stop in ((0, 1), (1, 2), (3, 4), (1, 4), (2, 5)):
        part = (x[start:stop].clone() for x in (q, k, v))
        assert torch.equal(dense(*part), whole[start:stop])


def test_torchs_fused_attention_depends_on_the_batch():
    """The reason for one sample at a time; when it fails, the loop has become needless."""
    torch.set_num_threads(2)
    q, k, v = tensors(5, 4, 4, 1, 600, dim=64)
    whole = F.scaled_dot_product_attention(q, k, v)
    assert not all(
        torch.equal(F.scaled_dot_product_attention(q[i : i + 1], k[i : i + 1], v[i : i + 1]), whole[i : i + 1])
        for i in range(5)
    )
