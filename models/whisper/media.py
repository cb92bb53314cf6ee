"""Sound to the log-mel that the encoder hears, through the reference's own path from file to samples."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from models.components.audio.mel import log_mel
from models.components.audio.resample import mono, resample
from models.whisper.config import FRAMES, HOP, SAMPLE_RATE
from serving.core.contract import Audio
from serving.errors import BadRequest

PCM = 32768


def samples_of(audio: Audio) -> np.ndarray:
    """16 kHz mono float32 [T], rounded to 16 bits as openai-whisper's loader does. Raises `BadRequest`."""
    if audio.samples.size == 0:
        raise BadRequest("The audio is empty.", param="file")
    if not np.isfinite(audio.samples).all():
        raise BadRequest("The audio has samples that are not finite.", param="file")
    at_rate = resample(mono(audio.samples), audio.rate, SAMPLE_RATE)
    return np.clip(np.rint(at_rate * PCM), -PCM, PCM - 1).astype(np.float32) / PCM


def features(samples: np.ndarray, n_mels: int) -> Tensor:
    """Log-mel [n_mels, T // 160 + 3000] of samples [T] and 30 s of silence after them."""
    padded = F.pad(torch.from_numpy(samples), (0, FRAMES * HOP))
    return log_mel(padded, n_mels, rate=SAMPLE_RATE, hop=HOP)
