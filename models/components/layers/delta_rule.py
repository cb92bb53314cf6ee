"""The gated delta rule (Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464), token by token and in chunks.

For each value head, with keys of unit length, S <- a S, then S <- S + k (b (v - S^T k))^T, and the output is S^T q.
`a` = exp(g) is the decay, `b` how much a token overwrites. Value head h reads key head h // (Hv / Hk).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64


class Inputs(NamedTuple):
    """Of N tokens, float32. Queries are scaled."""

    q: Tensor  # [N, Hk, dk]
    k: Tensor  # [N, Hk, dk]
    v: Tensor  # [N, Hv, dv]
    g: Tensor  # [N, Hv]
    beta: Tensor  # [N, Hv]

    def at(self, tokens: slice | Tensor) -> Inputs:
        """Of some of the tokens."""
        return Inputs(*(x[tokens] for x in self))


def recurrent(given: Inputs, state: Tensor) -> Tensor:
    """One token of each row, outputs [N, Hv, dv]; `state` [N, Hv, dk, dv] is changed in place."""
    n, heads, dk, dv = state.shape
    q, k = (_spread(x, heads).reshape(-1, dk) for x in given[:2])
    v, g, beta = given[2:]
    decay, state = g.exp().view(-1, 1), state.view(-1, dk, dv)
    read = decay[..., None] * torch.bmm(torch.stack([k, q], 1), state)  # [N Hv, 2, dv]: what is known of k, and of q
    change = (v.reshape(-1, dv) - read[:, 0]) * beta.view(-1, 1)
    state.mul_(decay[..., None]).baddbmm_(k[..., None], change[:, None])
    return (read[:, 1] + (k * q).sum(-1, keepdim=True) * change).view(n, heads, dv)


def recurrent_exact(given: Inputs, state: Tensor) -> Tensor:
    """As `recurrent`, without a matrix product: each row's bits are the same among any others."""
    q, k = (_spread(x, state.shape[1])[..., None] for x in given[:2])  # [N, Hv, dk, 1]
    v, g, beta = given[2:]
    state.mul_(g.exp()[..., None, None])
    change = (v - (state * k).sum(-2)) * beta[..., None]
    state.add_(k * change[..., None, :])
    return (state * q).sum(-2)


def chunked(given: Inputs, state: Tensor, *, chunk: int = CHUNK) -> Tensor:
    """All T tokens of one row, outputs [T, Hv, dv], by products over chunks.

    `state` [Hv, dk, dv] is changed in place. Within a chunk with running decay G, what the tokens write is U - W S,
    from (I + A) [U, W] = b [v, exp(G) k] with A[i, j] = b_i exp(G_i - G_j) k_i . k_j below the diagonal.
    """
    count, (heads, _, dv) = len(given.q), state.shape
    chunk = min(chunk, count)
    q, k, v, g, beta = (_chunks(x, chunk) for x in given)  # [H, n, C, d] and [Hv, n, C]
    total = g.cumsum(-1)
    between = total[..., :, None] - total[..., None, :]
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).triu(1)
    decay = between.masked_fill_(later, float("-inf")).exp_()  # [Hv, n, C, C]
    across, seen = (_spread(x @ k.transpose(-1, -2), heads, 0) * decay for x in (k, q))
    grown = total.exp()[..., None]
    q, k = (_spread(x, heads, 0) for x in (q, k))
    wanted = torch.cat([v, k * grown], -1) * beta[..., None]
    solved = torch.linalg.solve_triangular(across * beta[..., None], wanted, upper=False, unitriangular=True)
    written, known = solved.split([dv, k.shape[-1]], -1)
    q, k = q * grown, k * (total[..., -1:] - total).exp()[..., None]
    whole = grown[:, :, -1, :, None]  # [Hv, n, 1, 1]
    out = torch.empty_like(v)
    for i in range(v.shape[1]):
        new = torch.baddbmm(written[:, i], known[:, i], state, alpha=-1)
        torch.baddbmm(q[:, i] @ state, seen[:, i], new, out=out[:, i])
        state.mul_(whole[:, i]).baddbmm_(k[:, i].transpose(-1, -2), new)
    return out.flatten(1, 2)[:, :count].transpose(0, 1)


def _spread(x: Tensor, heads: int, dim: int = 1) -> Tensor:
    """Key heads repeated for the value heads that read them."""
    return x if x.shape[dim] == heads else x.repeat_interleave(heads // x.shape[dim], dim)


def _chunks(x: Tensor, size: int) -> Tensor:
    """[T, H, ...] to [H, n, size, ...], the last chunk filled with zeros, which change nothing."""
    padded = F.pad(x, (0, 0) * (x.dim() - 1) + (0, -len(x) % size))
    return padded.unflatten(0, (-1, size)).movedim(2, 0).contiguous()
