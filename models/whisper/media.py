"""Sound to the log-mel that the encoder hears, through the reference's own path from file to samples.

A recording is read block by block whenever a window asks for it, so that its length costs no memory.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from models.components.audio.mel import levelled, mel_levels
from models.components.audio.resample import mono, resample_part
from models.whisper.config import FRAMES, HOP, SAMPLE_RATE
from serving.core.contract import Audio
from serving.errors import BadRequest

PCM = 32768
N_FFT = 400
SILENT = -10.0  # log10 of the least power that is told apart
TILE = 16  # frames: products of fewer take kernels that add up in another order
KEPT = 20  # blocks of 30 s: a recording of ten minutes is computed once, a longer one twice


class Sound:
    """A recording as mel frames of 10 ms: `content` of them, then 30 s of silence. Raises `BadRequest`."""

    def __init__(self, audio: Audio, n_mels: int) -> None:
        if audio.samples.size == 0:
            raise BadRequest("The audio is empty.", param="file")
        self.audio, self.n_mels = audio, n_mels
        self.count = -(-audio.samples.shape[-1] * SAMPLE_RATE // audio.rate)  # samples at 16 kHz
        self.content = self.count // HOP
        self._kept: dict[int, Tensor] = {}
        self.loudest = max(float(self._levels(i).max()) for i in range(-(-(self.content + FRAMES) // FRAMES)))

    def mel(self, start: int, stop: int) -> Tensor:
        """Log-mel [n_mels, stop - start] of frames [start, stop)."""
        if start == stop:
            return torch.zeros(self.n_mels, 0)
        blocks = range(start // FRAMES, -(-stop // FRAMES))
        found = torch.cat([self._levels(i) for i in blocks], 1)[:, start - blocks[0] * FRAMES :]
        return levelled(found[:, : stop - start], self.loudest)

    def samples(self, start: int, stop: int) -> np.ndarray:
        """16 kHz mono float32, rounded to 16 bits as openai-whisper's loader does."""
        part = resample_part(self._read, self.audio.samples.shape[-1], self.audio.rate, SAMPLE_RATE, start, stop)
        return np.clip(np.rint(part * PCM), -PCM, PCM - 1).astype(np.float32) / PCM

    def _read(self, start: int, stop: int) -> np.ndarray:
        part = self.audio.read(start, stop)
        if not np.isfinite(part).all():
            raise BadRequest("The audio has samples that are not finite.", param="file")
        return mono(part)

    def _levels(self, index: int) -> Tensor:
        if index not in self._kept:
            if len(self._kept) == KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[index] = self._block(index)
        return self._kept[index]

    def _block(self, index: int) -> Tensor:
        """Levels of frames [3000 i, 3000 (i + 1)), fewer at the end; a frame's middle is at 160 times its number."""
        frames = min(FRAMES, self.content + FRAMES - index * FRAMES)
        start = index * FRAMES * HOP - N_FFT // 2
        reached = max(0, (self.count - start) // HOP + 1)  # frames that any sound reaches
        heard = min(frames, -(-reached // TILE) * TILE)
        out = torch.full((self.n_mels, frames), SILENT)
        if heard:
            part = torch.from_numpy(self._padded(start, start + (heard - 1) * HOP + N_FFT))
            out[:, :heard] = mel_levels(part, self.n_mels, rate=SAMPLE_RATE, n_fft=N_FFT, hop=HOP)
        return out

    def _padded(self, start: int, stop: int) -> np.ndarray:
        """Samples [start, stop), mirrored before the first, silent after the last."""
        sound = self.samples(max(0, start), min(stop, self.count))
        if start < 0:
            before = self.samples(0, min(1 - start, self.count))[1:]
            before = np.pad(before, (0, -start - len(before)))
            sound = np.concatenate([before[::-1], sound])
        return np.pad(sound, (0, stop - start - len(sound)))
