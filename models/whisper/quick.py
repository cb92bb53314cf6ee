"""The encoder on a CPU, quicker: what it makes of silence is the same in every window, and need not be computed again.

A window is sound, then silence, which the reference represents by zeros. Behind the reach of the convolutions the
first layer's input is then known beforehand, and so are its queries, keys and values, and how silence attends to
silence; the two parts of a softmax over sound and silence are joined by their log-sum-exp. What remains differs from
the plain encoder by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from models.whisper.modules import AudioEncoder, EncoderBlock, MultiHeadAttention

STEP = 50  # positions: sound is rounded up to whole seconds, so that few lengths of silence occur
Heads = tuple[Tensor, Tensor, Tensor]  # queries, keys, values, each [heads, T, head_dim]


def _heads(attention: MultiHeadAttention, x: Tensor) -> Heads:
    """Of normalised x [T, D]; contiguous, which the products that follow are faster for."""
    q, k, v = (part.transpose(0, 1).contiguous() for part in attention.project(x))
    return q, k, v


def _attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Attention [heads, T, head_dim] of q over k, v, and the log-sum-exp [heads, T] of its scores."""
    out, level = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q[None], k[None], v[None])
    return out[0], level[0]


def _rest(block: EncoderBlock, x: Tensor, attended: Tensor) -> Tensor:
    """The block behind its attention [heads, T, head_dim], for x [T, D]."""
    x = x + block.attn.out(attended.transpose(0, 1).flatten(1))
    return x + block.mlp(block.mlp_ln(x))


@dataclass(slots=True)
class _Silence:
    """The first layer's input [n_audio_ctx, D] for a silent window, and what its attention makes of it."""

    x: Tensor
    heads: Heads
    inner: dict[int, tuple[Tensor, Tensor]]  # first silent position -> silence attending to the silence from there on

    def among_itself(self, start: int) -> tuple[Tensor, Tensor]:
        if start not in self.inner:
            q, k, v = (part[:, start:] for part in self.heads)
            self.inner[start] = _attend(q, k, v)
        return self.inner[start]


class QuickEncoder:
    """Callable: `net` on one window. Its parameters may not change once this is made."""

    def __init__(self, net: AudioEncoder) -> None:
        self.net = net
        self.blocks: Sequence[EncoderBlock] = [block for block in net.blocks if isinstance(block, EncoderBlock)]
        positions = len(net.positional_embedding)
        with torch.inference_mode():
            silence = torch.zeros(net.conv1.in_channels, 2 * positions)
            x = self._stem(silence, positions)
            first = self.blocks[0]
            self.silence = _Silence(x, _heads(first.attn, first.attn_ln(x)), {})

    def __call__(self, mel: Tensor, sound: int) -> Tensor:
        """Features [positions, D] of log-mel [n_mels, 2 * positions], which is 0 from frame `sound` on."""
        positions = mel.shape[1] // 2
        reached = min(positions, -(-((sound + 3) // 2) // STEP) * STEP)
        x = self._first(self._stem(mel, reached), positions)
        for block in self.blocks[1:]:
            x = _rest(block, x, _attend(*_heads(block.attn, block.attn_ln(x)))[0])
        return self.net.ln_post(x)

    def _stem(self, mel: Tensor, positions: int) -> Tensor:
        """The convolutions at the first positions: [positions, D]. Past the end they see silence."""
        x = F.gelu(self.net.conv1(mel[None, :, : 2 * positions + 1]))[:, :, : 2 * positions]
        return F.gelu(self.net.conv2(x))[0].T + self.net.positional_embedding[:positions]

    def _first(self, heard: Tensor, positions: int) -> Tensor:
        """The first layer for the stem's output [T, D] at the positions that sound reaches."""
        block, reached, quiet = self.blocks[0], len(heard), self.silence
        q, k, v = _heads(block.attn, block.attn_ln(heard))
        behind = slice(reached, positions)
        silent_q, silent_k, silent_v = (part[:, behind] for part in quiet.heads)
        out = _attend(q, torch.cat([k, silent_k], 1), torch.cat([v, silent_v], 1))[0]
        if positions == len(quiet.x) and reached < positions:
            out = torch.cat([out, _joined(_attend(silent_q, k, v), quiet.among_itself(reached))], 1)
        elif reached < positions:
            out = torch.cat([out, _attend(silent_q, torch.cat([k, silent_k], 1), torch.cat([v, silent_v], 1))[0]], 1)
        return _rest(block, torch.cat([heard, quiet.x[behind]]), out)


def _joined(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """Attention over two sets of keys from that over each."""
    (a, level_a), (b, level_b) = one, other
    return torch.lerp(a, b, torch.sigmoid(level_b - level_a)[..., None])
