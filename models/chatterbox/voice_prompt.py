"""A clip of a voice to what S3Gen is told of it, and to the tokens that T3 is told."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.chatterbox.s3gen import S3Gen
from models.chatterbox.s3gen_config import FRAMES_PER_TOKEN, PROMPT_RATE, SAMPLE_RATE
from models.components.audio import sinc, soxr_hq
from models.components.audio.mel import vocoder_mel
from serving.core.contract import Audio

LONGEST = 10  # seconds of a clip that S3Gen is told of


class Prompt(NamedTuple):
    """What S3Gen is told of a voice."""

    prompt_token: Tensor  # [1, T] int64
    prompt_token_len: Tensor  # [1]
    prompt_feat: Tensor  # [1, 2T or 2T + 1, 80]
    prompt_feat_len: Tensor  # [1]
    embedding: Tensor  # [1, 192]


def at_24k(audio: Audio) -> np.ndarray:
    """The clip's mean channel at 24 kHz: float32 [T]."""
    return soxr_hq.resample(audio.samples.mean(0, dtype=np.float32), audio.rate, SAMPLE_RATE)


def at_16k(samples: np.ndarray) -> np.ndarray:
    """A clip at 24 kHz as T3's prompt and the voice encoder hear it: float32 [T]. S3Gen's own is by a sinc."""
    return soxr_hq.resample(samples, SAMPLE_RATE, PROMPT_RATE)


@torch.inference_mode()
def prompt(net: S3Gen, samples: np.ndarray) -> Prompt:
    """What S3Gen is told of a clip [T] at 24 kHz, of which it hears ten seconds."""
    heard = torch.from_numpy(samples[: LONGEST * SAMPLE_RATE]).to(_device(net))
    mel = vocoder_mel(heard).T[None]
    lower = sinc.resample(heard, SAMPLE_RATE, PROMPT_RATE)
    tokens = net.tokenizer(lower)[None, : mel.shape[1] // FRAMES_PER_TOKEN]
    lengths = torch.tensor([tokens.shape[1]]), torch.tensor([mel.shape[1]])
    return Prompt(tokens, lengths[0], mel, lengths[1], net.speaker_encoder(lower))


@torch.inference_mode()
def prompt_tokens(net: S3Gen, samples: np.ndarray, seconds: int, most: int) -> Tensor:
    """T3's prompt from a clip [T] at 16 kHz: the tokens [1, n] of its first `seconds`, n <= `most`."""
    heard = torch.from_numpy(samples[: seconds * PROMPT_RATE]).to(_device(net))
    return net.tokenizer(heard, most)[None]


def _device(net: S3Gen) -> torch.device:
    return net.flow.encoder_proj.weight.device
