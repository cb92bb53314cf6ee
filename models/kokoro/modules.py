"""Kokoro's network in two halves, in the checkpoint's parameter names.

The text half runs over phonemes and says how long each lasts; the frame half runs over what that lays out. Between
them a row changes its length by what the first half computed, so they are two nodes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.kokoro.albert import Albert
from models.kokoro.config import Config
from models.kokoro.layers import Span
from models.kokoro.prosody import ProsodyPredictor, TextEncoder
from models.kokoro.vocoder import HARMONICS, Decoder


class Encoded(NamedTuple):
    """The text half's result, a position a phoneme."""

    prosody: Tensor  # [B, T, C + S]
    text: Tensor  # [B, T, C]
    durations: Tensor  # [B, T] frames at the asked speed, not rounded


class Kokoro(nn.Module):
    """StyleTTS2's decoder-only inference: PL-BERT, prosody, and an iSTFTNet vocoder (24 kHz)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.bert = Albert(config.plbert, config.n_token)
        self.bert_encoder = nn.Linear(config.plbert.hidden_size, config.hidden_dim)
        self.predictor = ProsodyPredictor(config)
        self.text_encoder = TextEncoder(
            config.hidden_dim, config.text_encoder_kernel_size, config.n_layer, config.n_token
        )
        self.decoder = Decoder(config)

    def text_half(self, tokens: Tensor, lengths: Tensor, style: Tensor, speed: Tensor) -> Encoded:
        """tokens [B, T] with `lengths` [B] real, style [B, 2S], speed [B]."""
        span = Span.of(lengths, tokens.shape[1])
        _, manner = self._styles(style)
        hidden = self.bert_encoder(self.bert(tokens, span.mask))
        prosody = self.predictor.text_encoder(hidden, manner, span)
        durations = self.predictor.durations(prosody, span) / speed[:, None]
        return Encoded(prosody, self.text_encoder(tokens, span), durations)

    def frame_half(self, prosody: Tensor, text: Tensor, lengths: Tensor, style: Tensor, noise: Tensor) -> Tensor:
        """The halves of `Encoded` laid out in frames [B, T, ...], `lengths` [B] of them real -> audio [B, samples].

        `noise` [B, 9, samples] is standard normal; what lies past a row's end must be zero.
        """
        x, f0 = self.trunk(prosody, text, lengths, style)
        source = self.decoder.generator.source(f0, noise, 2 * lengths)
        return self.decoder.generator(x, self._styles(style)[0], source, 2 * lengths)

    def trunk(self, prosody: Tensor, text: Tensor, lengths: Tensor, style: Tensor) -> tuple[Tensor, Tensor]:
        """What the generator starts from [B, C, 2T], and the pitch in Hz [B, 2T]."""
        timbre, manner = self._styles(style)
        span, twice = Span.of(lengths, text.shape[1]), Span.of(2 * lengths, 2 * text.shape[1])
        f0, energy = self.predictor.curves(prosody, manner, span, twice)
        return self.decoder.trunk(text.transpose(1, 2), f0, energy, timbre, span, twice), f0

    def _styles(self, style: Tensor) -> tuple[Tensor, Tensor]:
        """How the voice sounds, and how it speaks."""
        size = self.config.style_dim
        return style[:, :size], style[:, size:]


def frame_counts(durations: Tensor) -> Tensor:
    """Whole frames of each phoneme, at least one: rounded half to even, as the reference rounds."""
    return torch.round(durations).clamp(min=1).long()


def draw_noise(generator: torch.Generator, samples: int) -> Tensor:
    """The source's noise [9, samples] in the reference's draw order, so that a seed gives the reference's bits.

    It first draws nine initial phases, which have no effect on its output but move the generator. Then it fills a
    transposed tensor, for which torch draws otherwise than for a contiguous one: hence the transposed view.
    """
    torch.rand(1, HARMONICS, generator=generator)
    noise = torch.empty(1, HARMONICS, samples)
    noise.transpose(1, 2).normal_(generator=generator)
    return noise[0]
