"""Who speaks: a clip's mel in overlapping parts through an LSTM, the mean of the parts' embeddings.

After Resemble's encoder (GE2E, arXiv:1710.10467): 16 kHz, 40 Slaney mels of the power spectrum, parts of 160 frames.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.chatterbox.config import SPEAKER
from models.components.audio.mel import slaney_filters

RATE, N_FFT, HOP, MELS = 16_000, 400, 160, 40
FRAMES = 160  # of a part
STEP = round(RATE / 1.3 / FRAMES)  # frames between parts: 1.3 parts a second
COVERAGE = 0.8  # of a last part that must be sound
TRIM_DB, TRIM_FRAME, TRIM_HOP = 20.0, 2048, 512


def trimmed(samples: np.ndarray) -> np.ndarray:
    """Without the ends that are 20 dB below the loudest frame (RMS of 2048 samples every 512), as librosa does."""
    padded = np.pad(samples, TRIM_FRAME // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, TRIM_FRAME)[::TRIM_HOP]
    power = np.mean(np.square(frames, dtype=np.float32), axis=-1)
    loud = np.flatnonzero(10 * np.log10(np.maximum(power, 1e-10)) > 10 * np.log10(max(power.max(), 1e-10)) - TRIM_DB)
    if not len(loud):
        return samples[:0]
    return samples[loud[0] * TRIM_HOP : min(len(samples), (loud[-1] + 1) * TRIM_HOP)]


def mel(samples: Tensor) -> Tensor:
    """Mel power [1 + T // 160, 40] of samples [T] at 16 kHz: periodic Hann window, reflected ends."""
    spectrum = torch.stft(samples, N_FFT, HOP, window=torch.hann_window(N_FFT), return_complex=True)
    return (slaney_filters(MELS, N_FFT, RATE) @ spectrum.abs() ** 2).T


def parts(frames: Tensor) -> Tensor:
    """Parts [N, 160, 40] of a mel [T, 40]; the last is padded with zeros where enough of it is sound."""
    count, rest = divmod(max(len(frames) - FRAMES + STEP, 0), STEP)
    if count == 0 or (rest + FRAMES - STEP) / FRAMES >= COVERAGE:
        count += 1
    wanted = FRAMES + STEP * (count - 1)
    padded = F.pad(frames, (0, 0, 0, max(0, wanted - len(frames))))
    return padded[:wanted].unfold(0, FRAMES, STEP).transpose(1, 2).contiguous()


class VoiceEncoder(nn.Module):
    """Three LSTM layers, a projection, ReLU, unit length."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(MELS, SPEAKER, num_layers=3, batch_first=True)
        self.proj = nn.Linear(SPEAKER, SPEAKER)

    def forward(self, partials: Tensor) -> Tensor:
        """Parts [N, 160, 40] to unit embeddings [N, 256]."""
        _, (hidden, _) = self.lstm(partials)
        return F.normalize(F.relu(self.proj(hidden[-1])), dim=-1)

    def embed(self, samples: np.ndarray) -> Tensor:
        """The voice of float32 samples [T] at 16 kHz: a unit embedding [1, 256]."""
        sound = trimmed(samples)
        embeddings = self(parts(mel(torch.from_numpy(np.ascontiguousarray(sound)))))
        return F.normalize(embeddings.mean(0, keepdim=True), dim=-1)
