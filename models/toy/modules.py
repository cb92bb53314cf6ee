"""The toy's networks. Attention is a callable, so that the same module runs on a paged cache and in a naive oracle."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.toy.config import ToyConfig

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q [T, H, D], k, v -> [T, H, D]


class Block(nn.Module):
    """Pre-norm attention and a small MLP."""

    def __init__(self, c: ToyConfig) -> None:
        super().__init__()
        self.heads = c.heads
        self.norm1, self.norm2 = nn.LayerNorm(c.width), nn.LayerNorm(c.width)
        self.qkv = nn.Linear(c.width, 3 * c.width)
        self.out = nn.Linear(c.width, c.width)
        self.up, self.down = nn.Linear(c.width, 2 * c.width), nn.Linear(2 * c.width, c.width)

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:  # [T, width]
        q, k, v = self.qkv(self.norm1(x)).view(len(x), 3, self.heads, -1).unbind(1)
        x = x + self.out(attend(layer, q, k, v).reshape(len(x), -1))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Speaker(nn.Module):
    """A language model over sound tokens. The unconditional lane sees the same positions with a blank prompt."""

    def __init__(self, c: ToyConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(c.vocab, c.width)
        self.positions = nn.Embedding(c.max_tokens, c.width)
        self.blocks = nn.ModuleList([Block(c) for _ in range(c.layers)])
        self.norm = nn.LayerNorm(c.width)
        self.head = nn.Linear(c.width, c.vocab)

    def forward(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden rows [T, width] of packed tokens `ids` [T] at `positions` [T]."""
        x = self.tokens(ids) + self.positions(positions)
        for layer, block in enumerate(self.blocks):
            x = block(x, layer, attend)
        return self.norm(x)


class Codec(nn.Module):
    """Tokens to samples: each token's row mixed with its two neighbours, then a one-pole filter over time."""

    def __init__(self, c: ToyConfig) -> None:
        super().__init__()
        self.table = nn.Embedding(c.vocab, c.samples)
        self.mix = nn.Parameter(torch.zeros(4))  # weights of tokens -2, -1, 0 and +1
        self.pole = nn.Parameter(torch.zeros(1))

    def excite(self, tokens: Tensor) -> Tensor:
        """Samples before the filter, [..., T - 3, samples], of tokens [..., T]; the edges are context."""
        x = self.table(tokens)
        span = x.shape[-2] - 3
        parts = [self.mix[i] * x[..., i : i + span, :] for i in range(4)]
        return parts[0] + parts[1] + parts[2] + parts[3]

    def filter(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """y[t] = x[t] + pole * y[t-1] over the last axis of x [N, S], from state [N]; the states come back too."""
        out, pole = [], torch.sigmoid(self.pole)
        for t in range(x.shape[-1]):
            state = x[:, t] + pole * state
            out.append(state)
        return torch.stack(out, -1), torch.stack(out, -1)


class Painter(nn.Module):
    """A velocity field over flattened patches, conditioned on time and text."""

    def __init__(self, c: ToyConfig) -> None:
        super().__init__()
        size = c.patch * c.patch * 3
        self.text = nn.Embedding(c.vocab, c.width)
        self.inner = nn.Linear(size + c.width + 1, 2 * c.width)
        self.outer = nn.Linear(2 * c.width, size)

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """Velocity [N, P, size] of patches x [N, P, size] at time [N] with text rows [N, width]."""
        n, p, _ = x.shape
        around = torch.cat([text, time[:, None]], -1)[:, None].expand(n, p, -1)
        return self.outer(F.silu(self.inner(torch.cat([x, around], -1))))


class Listener(nn.Module):
    """A gated recurrence clocked by frames of samples."""

    def __init__(self, c: ToyConfig) -> None:
        super().__init__()
        self.gate, self.input = nn.Linear(c.frame, c.memory), nn.Linear(c.frame, c.memory)
        self.head = nn.Linear(c.memory, c.vocab)

    def forward(self, frame: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, vocab] and the new state [N, memory] from frame [N, frame] and state."""
        keep = torch.sigmoid(self.gate(frame))
        state = keep * state + (1 - keep) * torch.tanh(self.input(frame))
        return self.head(state), state


class Networks(nn.Module):
    """All of them, filled from one seeded generator."""

    def __init__(self, c: ToyConfig, seed: int = 0) -> None:
        super().__init__()
        self.speaker, self.codec, self.painter, self.listener = Speaker(c), Codec(c), Painter(c), Listener(c)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in sorted(self.named_parameters()):
                parameter.normal_(1.0 if ".norm" in name and name.endswith("weight") else 0.0, 0.3, generator=generator)
        self.requires_grad_(False)
