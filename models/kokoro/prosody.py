"""Prosody: how long each phoneme lasts, and the pitch and energy of every frame; and the encoder of the phonemes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.kokoro.config import Config
from models.kokoro.layers import AdainResBlk1d, AdaLayerNorm, BiLSTM, Span


class ChannelNorm(nn.Module):
    """Layer norm over the channels of [B, C, T]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        x = F.layer_norm(x.transpose(1, 2), self.gamma.shape, self.gamma, self.beta, 1e-5)
        return x.transpose(1, 2)


class TextEncoder(nn.Module):
    """What is said: tokens [B, T] -> [B, T, C]."""

    def __init__(self, channels: int, kernel_size: int, depth: int, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, channels)
        pad = kernel_size // 2
        self.cnn = nn.ModuleList(
            nn.Sequential(nn.Conv1d(channels, channels, kernel_size, padding=pad), ChannelNorm(channels))
            for _ in range(depth)
        )
        self.lstm = BiLSTM(channels, channels // 2)

    def forward(self, tokens: Tensor, span: Span) -> Tensor:
        x = self.embedding(tokens).transpose(1, 2) * span.mask
        for layer in self.cnn:
            x = F.leaky_relu(layer(x), 0.2) * span.mask
        return self.lstm(x.transpose(1, 2), span)


class DurationEncoder(nn.Module):
    """x [B, T, C], style [B, S] -> [B, T, C + S]: LSTMs and styled norms in turn, the style beside every step."""

    def __init__(self, style_dim: int, channels: int, layers: int) -> None:
        super().__init__()
        self.lstms = nn.ModuleList()
        for _ in range(layers):
            self.lstms.append(BiLSTM(channels + style_dim, channels // 2))
            self.lstms.append(AdaLayerNorm(style_dim, channels))

    def forward(self, x: Tensor, style: Tensor, span: Span) -> Tensor:
        beside = style[:, None].expand(-1, x.shape[1], -1)
        mask = span.mask.transpose(1, 2)
        x = torch.cat([x, beside], 2) * mask
        for lstm, norm in zip(self.lstms[::2], self.lstms[1::2], strict=True):
            x = torch.cat([norm(lstm(x, span), style), beside], 2) * mask
        return x


class Projection(nn.Module):
    """A linear layer one level down, where the checkpoint has it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear_layer = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_layer(x)


def _curve_blocks(channels: int, style_dim: int) -> nn.ModuleList:
    half = channels // 2
    return nn.ModuleList(
        [
            AdainResBlk1d(channels, channels, style_dim),
            AdainResBlk1d(channels, half, style_dim, upsample=True),
            AdainResBlk1d(half, half, style_dim),
        ]
    )


class ProsodyPredictor(nn.Module):
    """Durations from the encoded text; then F0 and energy curves at two values a frame."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        channels, style = config.hidden_dim, config.style_dim
        self.text_encoder = DurationEncoder(style, channels, config.n_layer)
        self.lstm = BiLSTM(channels + style, channels // 2)
        self.duration_proj = Projection(channels, config.max_dur)
        self.shared = BiLSTM(channels + style, channels // 2)
        self.F0 = _curve_blocks(channels, style)
        self.N = _curve_blocks(channels, style)
        self.F0_proj = nn.Conv1d(channels // 2, 1, 1)
        self.N_proj = nn.Conv1d(channels // 2, 1, 1)

    def durations(self, x: Tensor, span: Span) -> Tensor:
        """Frames each phoneme lasts at speed 1, not rounded: encoded text [B, T, C + S] -> [B, T]."""
        return self.duration_proj(self.lstm(x, span)).sigmoid().sum(2)

    def curves(self, frames: Tensor, style: Tensor, span: Span, twice: Span) -> tuple[Tensor, Tensor]:
        """F0 in Hz and energy, each [B, 2T], of encoded text laid out in frames [B, T, C + S]."""
        x = self.shared(frames, span).transpose(1, 2)
        f0 = self.F0_proj(self._curve(self.F0, x, style, span, twice)) * twice.mask
        energy = self.N_proj(self._curve(self.N, x, style, span, twice)) * twice.mask
        return f0[:, 0], energy[:, 0]

    def _curve(self, blocks: nn.ModuleList, x: Tensor, style: Tensor, span: Span, twice: Span) -> Tensor:
        x = blocks[0](x, style, span, span)
        x = blocks[1](x, style, span, twice)
        return blocks[2](x, style, twice, twice)
