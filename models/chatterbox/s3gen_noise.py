"""The noise that S3Gen starts from: in the reference's order of drawing, or by absolute place for streams.

A whole utterance takes its draws from one generator, so that a seed gives the package's own bits. They depend on how
long it is, which a stream does not know: there, every frame has noise of its own, whatever chunk it comes in.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from models.chatterbox.s3gen_config import MELS
from models.chatterbox.vocoder_source import HARMONICS

BLOCK = 32  # frames that are drawn together


class Kind(IntEnum):
    """What a field is for: fields of one seed have nothing in common."""

    PROMPT, SPEECH, PHASE, SOURCE = range(4)


class Draws:
    """The draws of a whole utterance, in order; each may be asked for once, as the reference does."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed % 2**63)

    def flow(self, prompt: int, frames: int, meanflow: bool) -> Tensor:
        """[80, prompt + frames]. Mean flow draws what is said first, then everything, of which the prompt is used."""
        said = torch.randn(1, MELS, frames, generator=self.generator) if meanflow else None
        noise = torch.randn(1, MELS, prompt + frames, generator=self.generator)[0]
        if said is not None:
            noise[:, prompt:] = said[0]
        return noise

    def offsets(self) -> Tensor:
        """Where the sines start: radians [9, 1] in [-pi, pi), 0 for the fundamental."""
        low, span = torch.tensor(-np.pi), torch.tensor(np.pi) - torch.tensor(-np.pi)
        offsets = (low + torch.rand(1, HARMONICS, 1, generator=self.generator) * span)[0]
        offsets[0] = 0
        return offsets

    def source(self, samples: int) -> Tensor:
        """[9, samples]."""
        return torch.randn(1, HARMONICS, samples, generator=self.generator)[0]


def field(seed: int, kind: Kind, start: int, stop: int, shape: tuple[int, ...]) -> Tensor:
    """Standard normal [stop - start, *shape]: element i belongs to frame start + i of the utterance."""
    blocks = range(start // BLOCK, -(-stop // BLOCK))
    if not blocks:
        return torch.zeros(0, *shape)
    drawn = torch.cat([_block(seed, kind, block, shape) for block in blocks])
    first = blocks[0] * BLOCK
    return drawn[start - first : stop - first]


def _block(seed: int, kind: Kind, block: int, shape: tuple[int, ...]) -> Tensor:
    words = np.random.SeedSequence([seed, int(kind), block]).generate_state(1, np.uint64)
    generator = torch.Generator().manual_seed(int(words[0] >> np.uint64(1)))
    return torch.randn(BLOCK, *shape, generator=generator)


def flow_field(seed: int, prompt: int, start: int, stop: int) -> Tensor:
    """Where a window of a stream starts: [80, prompt + stop - start], frames [start, stop) of what is said."""
    ahead = field(seed, Kind.PROMPT, 0, prompt, (MELS,))
    return torch.cat([ahead, field(seed, Kind.SPEECH, start, stop, (MELS,))]).T


def source_field(seed: int, start: int, stop: int, samples_per_frame: int) -> Tensor:
    """The excitation's noise for frames [start, stop): [9, samples]."""
    drawn = field(seed, Kind.SOURCE, start, stop, (HARMONICS, samples_per_frame))
    return drawn.transpose(0, 1).reshape(HARMONICS, -1)


def field_offsets(seed: int) -> Tensor:
    """A stream's `Draws.offsets`."""
    words = np.random.SeedSequence([seed, int(Kind.PHASE)]).generate_state(1, np.uint64)
    return Draws(int(words[0] >> np.uint64(1))).offsets()
