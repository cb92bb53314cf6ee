"""S3Gen's flow: speech tokens and a voice to mel frames, by Euler steps from noise."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.chatterbox.flow_encoder import Encoder
from models.chatterbox.flow_estimator import Estimator
from models.chatterbox.s3gen_config import MELS, SPEECH_TOKENS, S3GenConfig
from models.chatterbox.sight import Sight

GUIDANCE = 0.7  # of plain flow; mean flow has been distilled with it


class Window(NamedTuple):
    """Rows of one solve, padded to a common length. A row is its prompt, then what it says."""

    tokens: Tensor  # [B, T] int64
    lengths: Tensor  # [B] tokens that are real
    kept: Tensor  # [B] frames that are solved: twice the tokens, less those of the look-ahead
    prompt: Tensor  # [B, F, 80] mel of the prompt, zero behind it; F <= 2T
    speaker: Tensor  # [B, 192]
    noise: Tensor  # [B, 80, F] where the flow starts
    whole: bool = False  # every row fills T and F, so that nothing is masked


class Solver(nn.Module):
    """Holds the estimator under the checkpoint's name."""

    def __init__(self, c: S3GenConfig) -> None:
        super().__init__()
        self.meanflow = c.estimator.meanflow
        self.estimator = Estimator(c.estimator)

    def schedule(self, steps: int) -> Tensor:
        """Times of the steps, from 0 to 1: even for mean flow, else a cosine that starts slowly."""
        even = torch.linspace(0, 1, steps + 1, device=self.estimator.final_proj.weight.device)
        return even if self.meanflow else 1 - torch.cos(even * 0.5 * torch.pi)

    def forward(self, x: Tensor, around: Tensor, sight: Sight, steps: int) -> Tensor:
        """x [B, 80, T] is noise; around [B, 240, T] -> mel [B, 80, T]."""
        rows, span = len(x), self.schedule(steps)
        if not self.meanflow:
            around, sight = torch.cat([around, torch.zeros_like(around)]), sight.twice()
        for t, r in pairwise(span):
            time = self.estimator.time(t.expand(len(around)), r.expand(len(around)))
            if self.meanflow:
                velocity = self.estimator(x, around, time, sight)
            else:
                cond, uncond = self.estimator(torch.cat([x, x]), around, time, sight).split(rows)
                velocity = (1.0 + GUIDANCE) * cond - GUIDANCE * uncond
            x = x + (r - t) * velocity
        return x


class Flow(nn.Module):
    """Tokens to mel frames [B, 80, F]; the prompt's frames come out too."""

    def __init__(self, c: S3GenConfig) -> None:
        super().__init__()
        self.input_embedding = nn.Embedding(SPEECH_TOKENS, c.encoder.width)
        self.spk_embed_affine_layer = nn.Linear(c.speaker.embedding, MELS)
        self.encoder = Encoder(c.encoder)
        self.encoder_proj = nn.Linear(c.encoder.width, MELS)
        self.decoder = Solver(c)

    def encode(self, w: Window) -> Tensor:
        """What is to be said, frame by frame: [B, 2T, 80]."""
        real = torch.arange(w.tokens.shape[1], device=w.tokens.device) < w.lengths[:, None]
        return self.encoder_proj(self.encoder(self.input_embedding(w.tokens), Sight.of(real, w.whole)))

    def forward(self, w: Window, steps: int) -> Tensor:
        """Mel [B, 80, F], zero behind a row's `kept` frames."""
        frames = w.noise.shape[2]
        mu = self.encode(w)[:, :frames].transpose(1, 2)
        speaker = self.spk_embed_affine_layer(F.normalize(w.speaker, dim=1))
        around = torch.cat([mu, speaker[..., None].expand_as(mu), w.prompt.transpose(1, 2)], 1)
        real = torch.arange(frames, device=mu.device) < w.kept[:, None]
        if not w.whole:
            around = around * real[:, None]
        return self.decoder(w.noise, around, Sight.of(real, w.whole), steps)
