"""WAV and raw PCM as they stream: where the samples start, how many a piece holds, at which rate."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

from perf.client.http import RequestFailed
from perf.schema import Sound

OPENAI_PCM_RATE = 24_000
PLACEHOLDER = 0x7FFF0000  # sizes from here on say "unknown": writers use 0x7fffffff, 0xffffffff and neighbours


class PcmStream:
    """Bytes in, whole sample frames out. The first bytes decide between WAV and raw 16-bit PCM."""

    def __init__(self, headers: Mapping[str, str], declared: int | None = None) -> None:
        self._fallback = _rate_of(headers) or declared or OPENAI_PCM_RATE
        self._buffer = bytearray()
        self._frame = 0  # bytes a frame, 0 before the samples start
        self._promised: int | None = None  # bytes of samples, where a WAV header says
        self._given = 0
        self.sound: Sound | None = None

    def feed(self, data: bytes) -> bytes:
        """The samples that are complete now; empty while there are none."""
        if self._frame and data[:4] == b"RIFF" and data[8:12] == b"WAVE":
            raise RequestFailed("malformed", "a second WAV header inside the stream")
        self._buffer += data
        if not self._frame and not self._start():
            return b""
        stop = len(self._buffer) // self._frame * self._frame
        samples = bytes(self._buffer[:stop])
        del self._buffer[:stop]
        self._given += stop
        return samples

    def frames(self, samples: bytes) -> int:
        return len(samples) // self._frame if self._frame else 0

    def finish(self) -> None:
        """Raise if the stream ended inside a header, a frame, or before the length it promised."""
        if self._buffer or not self._frame:
            raise RequestFailed("truncated" if self._given or self._buffer else "empty", "the audio is incomplete")
        if self._promised is not None and self._given < self._promised:
            raise RequestFailed("truncated", f"{self._given} of {self._promised} bytes of audio")
        if not self._given:
            raise RequestFailed("empty", "no audio")

    def _start(self) -> bool:
        if len(self._buffer) < 4:
            return False
        if self._buffer[:4] == b"RIFF":
            return self._wav_header()
        self.sound, self._frame = Sound(self._fallback), 2
        return True

    def _wav_header(self) -> bool:
        at = 12
        while len(self._buffer) >= at + 8:
            name, size = struct.unpack_from("<4sI", self._buffer, at)
            if name == b"data":
                self._begin_samples(at + 8, size)
                return True
            if name == b"fmt " and len(self._buffer) >= at + 24:
                _, channels, rate, _, frame, _ = struct.unpack_from("<HHIIHH", self._buffer, at + 8)
                self.sound, self._align = Sound(rate, channels), frame
            at += 8 + size + size % 2
        return False

    def _begin_samples(self, at: int, size: int) -> None:
        if self.sound is None or not self._align or not self.sound.rate:
            raise RequestFailed("malformed", "a WAV stream without a usable format")
        self._frame = self._align
        self._promised = size if 0 < size < PLACEHOLDER else None
        del self._buffer[:at]


def _rate_of(headers: Mapping[str, str]) -> int | None:
    """What the headers say of raw PCM: X-Sample-Rate, or a rate parameter of the content type."""
    if headers.get("x-sample-rate", "").isdigit():
        return int(headers["x-sample-rate"])
    found = re.search(r"rate=(\d+)", headers.get("content-type", ""))
    return int(found[1]) if found else None
