"""The gated DeltaNet layer: a short causal convolution and the gated delta rule; its state stands in slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.components.layers.delta_rule import Inputs, chunked, recurrent, recurrent_exact
from models.components.layers.norms import GatedRMSNorm, unit
from models.components.layers.spans import Spans


@dataclass(frozen=True, slots=True)
class DeltaNetShape:
    dim: int
    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    kernel: int
    eps: float = 1e-6

    @property
    def keys(self) -> int:
        return self.k_heads * self.k_dim

    @property
    def values(self) -> int:
        return self.v_heads * self.v_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    def tables(
        self, layers: Iterable[int], dtype: torch.dtype = torch.float32
    ) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """What `StateSlots` keeps for these layers. `dtype` is that of the last inputs of the convolution."""
        found: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        for layer in layers:
            found[f"conv.{layer}"] = ((self.kernel - 1, self.channels), dtype)
            found[f"delta.{layer}"] = ((self.v_heads, self.k_dim, self.v_dim), torch.float32)
        return found


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A step over the state of `DeltaNetShape.tables`. `exact`: a token's bits do not depend on the others' chunks."""

    tables: Mapping[str, Tensor]
    spans: Spans
    exact: bool = False

    def conv(self, layer: int, x: Tensor, weight: Tensor) -> Tensor:
        """The causal depthwise convolution of x [T, C] with weight [K, C], newest last."""
        table, singles = self.tables[f"conv.{layer}"], self.spans.singles
        if (slot := self.spans.alone_in(len(x))) is not None:
            held = torch.cat([table[slot], x])
            table[slot] = held[len(x) :]
            return _weighted(held[None], weight, len(x))[0]
        out = torch.zeros_like(x)
        if singles is not None:
            held = torch.cat([singles.take(table), x[singles.tokens][:, None]], 1)  # [m, K, C]
            out[singles.tokens] = _weighted(held, weight, 1)[:, 0]
            table[singles.at] = held[:, 1:]
        for slot, start, stop in self.spans.runs:
            held = torch.cat([table[slot], x[start:stop]])
            out[start:stop] = _weighted(held[None], weight, stop - start)[0]
            table[slot] = held[stop - start :]
        return out

    def delta(self, layer: int, given: Inputs) -> Tensor:
        """The gated delta rule over packed tokens, [T, Hv, dv]."""
        table, singles = self.tables[f"delta.{layer}"], self.spans.singles
        if not self.exact and (slot := self.spans.alone_in(len(given.v))) is not None:
            return chunked(given, table[slot])
        out = torch.zeros_like(given.v)
        if singles is not None:
            state = singles.take(table)
            rule = recurrent_exact if self.exact else recurrent
            out[singles.tokens] = rule(given.at(singles.tokens), state)
            singles.put(table, state)
        if self.exact:
            for slot, token in self.spans.each():
                out[token] = recurrent_exact(given.at(slice(token, token + 1)), table[slot : slot + 1])[0]
        else:
            for slot, start, stop in self.spans.runs:
                out[start:stop] = chunked(given.at(slice(start, stop)), table[slot])
        return out


def _weighted(x: Tensor, weight: Tensor, count: int) -> Tensor:
    """sum_j weight[j] x[:, j : j + count] of x [N, T, C], in one order whatever the step."""
    found = x[:, :count] * weight[0]
    for j in range(1, len(weight)):
        found.addcmul_(x[:, j : j + count], weight[j])
    return found


class GatedDeltaNet(nn.Module):
    """`in_proj` has the rows of queries, keys and values, then of the output gate z, of b, and of a."""

    def __init__(self, shape: DeltaNetShape) -> None:
        super().__init__()
        self.shape = shape
        self.split = [shape.channels, shape.values, shape.v_heads, shape.v_heads]
        self.in_proj = nn.Linear(shape.dim, sum(self.split), bias=False)
        self.conv_weight = nn.Parameter(torch.empty(shape.kernel, shape.channels))
        self.A_log = nn.Parameter(torch.empty(shape.v_heads))
        self.dt_bias = nn.Parameter(torch.empty(shape.v_heads))
        self.norm = GatedRMSNorm(shape.v_dim, shape.eps)
        self.out_proj = nn.Linear(shape.values, shape.dim, bias=False)
        self.act, self.sigmoid, self.softplus = nn.SiLU(), nn.Sigmoid(), nn.Softplus()
        self.scale = shape.k_dim**-0.5

    def forward(self, x: Tensor, layer: int, recur: Recurrence) -> Tensor:
        """[T, D] of x [T, D]."""
        s = self.shape
        mixed, z, b, a = self.in_proj(x).split(self.split, -1)
        mixed = self.act(recur.conv(layer, mixed, self.conv_weight)).float()
        q, k, v = mixed.split([s.keys, s.keys, s.values], -1)
        q, k = (unit(part.unflatten(-1, (s.k_heads, s.k_dim))) for part in (q, k))
        g = -self.A_log.float().exp() * self.softplus(a.float() + self.dt_bias)
        beta = self.sigmoid(b).float()
        found = recur.delta(layer, Inputs(q * self.scale, k, v.unflatten(-1, (s.v_heads, s.v_dim)), g, beta))
        gated = self.norm(found.to(x.dtype).reshape(-1, s.v_dim), z.reshape(-1, s.v_dim))  # [T Hv, dv]
        return self.out_proj(gated.view(len(x), -1))
