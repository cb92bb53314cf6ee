"""HiFT's excitation: the pitch of mel frames, and sines at its multiples with noise."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.chatterbox.s3gen_config import MELS, SAMPLE_RATE

HARMONICS = 9  # the fundamental and eight overtones
SINE_AMPLITUDE = 0.1
NOISE_STD = 0.003
VOICED_ABOVE = 10.0  # Hz


class PitchPredictor(nn.Module):
    """Five convolutions and a linear layer: the pitch of each frame in Hz, near 0 where it is unvoiced."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs in (MELS, width, width, width, width):
            layers += [nn.Conv1d(inputs, width, 3, padding=1), nn.ELU()]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(width, 1)

    def forward(self, mel: Tensor) -> Tensor:
        """mel [B, 80, T] -> [B, T]."""
        return self.classifier(self.condnet(mel).transpose(1, 2))[..., 0].abs()


class Phase(NamedTuple):
    """Where the sines stand."""

    turns: Tensor  # [B, 9] how far they have turned before sample `at`
    offset: Tensor  # [B, 9, 1] radians, drawn once an utterance; the fundamental's is 0
    at: int = 0  # the samples before it are led up to that


class HarmonicSource(nn.Module):
    """Sines where the speech is voiced, noise elsewhere, mixed into one excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.l_linear = nn.Linear(HARMONICS, 1)

    def forward(self, f0: Tensor, phase: Phase, noise: Tensor) -> tuple[Tensor, Tensor]:
        """f0 [B, 1, S] in Hz at every sample, noise [B, 9, S] standard normal -> excitation [B, 1, S], turns.

        The turns [B, 9, S] of each sine after each sample let a later stretch go on where this one was.
        """
        steps = torch.cat([f0 * i / SAMPLE_RATE for i in range(1, HARMONICS + 1)], 1)
        turns = torch.cumsum(steps, -1)
        since = turns[:, :, phase.at - 1] if phase.at else 0
        turns = turns + (phase.turns - since)[..., None]
        waves = SINE_AMPLITUDE * torch.sin(2 * torch.pi * (turns % 1) + phase.offset)
        voiced = (f0 > VOICED_ABOVE).float()
        amplitude = voiced * NOISE_STD + (1 - voiced) * SINE_AMPLITUDE / 3
        mixed = self.l_linear((waves * voiced + amplitude * noise).transpose(1, 2))
        return torch.tanh(mixed).transpose(1, 2), turns
