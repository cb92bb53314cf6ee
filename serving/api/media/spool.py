"""Decoded sound on its way to a port: in memory while it is short, in a file that has no name when it is long."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile

import numpy as np

from serving.core.contract import Audio

IN_MEMORY = 16 << 20  # bytes of samples: four minutes of 16 kHz mono


@dataclass(frozen=True, slots=True)
class Spooled(Audio):
    """`samples` is a view of a file. What `read` gives is a copy, and the file's pages leave the process at once."""

    pages: mmap.mmap

    def read(self, start: int, stop: int) -> np.ndarray:
        part = np.array(self.samples[:, start:stop], order="C")
        self.pages.madvise(mmap.MADV_DONTNEED)
        return part


class Spool:
    """Blocks of float32 [frames, channels] in, one `Audio` out; the caller opens the file that holds them."""

    def __init__(self, file: SpooledTemporaryFile[bytes], in_memory: int) -> None:
        self.size = self.channels = 0
        self._file, self._most = file, in_memory

    def add(self, block: np.ndarray) -> None:
        self.size, self.channels = self.size + block.nbytes, block.shape[1]
        self._file.write(np.ascontiguousarray(block).data)

    def audio(self, rate: int) -> Audio:
        """What was added, [channels, T]. What lies in the file stays there when the caller has closed it."""
        if self.size <= self._most:
            self._file.seek(0)
            samples = np.frombuffer(self._file.read(), np.float32).reshape(-1, self.channels)
            return Audio(np.array(samples.T, order="C"), rate)
        self._file.flush()
        pages = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        return Spooled(np.frombuffer(pages, np.float32).reshape(-1, self.channels).T, rate, pages)
