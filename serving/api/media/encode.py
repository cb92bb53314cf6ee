"""Float32 sound to wav, pcm, flac, mp3, opus and aac, a chunk at a time or whole.

One header a stream. A live WAV carries the largest size in its header, a whole one its true size. What an encoder
cannot do (a rate that Opus lacks, AAC without PyAV) is refused before anything is made, never swapped.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import soundfile

from serving.api.media.mp3 import frame_bytes
from serving.api.media.optional import pyav
from serving.errors import BadRequest, nearest

MEDIA_TYPES = {
    "wav": "audio/wav",
    "pcm": "audio/pcm",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
}
OPUS_RATES = {8000, 12000, 16000, 24000, 48000}
MP3_RATES = {8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000}
LIVE = 0xFFFFFFFF


class Encoder(Protocol):
    """Chunks of float32 [T] in, bytes out; `close` gives what is left, once; `discard` ends it at any time."""

    def push(self, samples: np.ndarray) -> bytes: ...
    def close(self) -> bytes: ...
    def discard(self) -> None: ...


class Plain:
    """An encoder that holds nothing which must be given back."""

    def discard(self) -> None:
        pass


def encoder(fmt: str, rate: int, *, live: bool) -> Encoder:
    """An incremental mono encoder. `live`: bytes leave as they are made, so no size is known in advance."""
    check_format(fmt, rate)
    return ENCODERS[fmt](rate, live)


def check_format(fmt: str, rate: int, param: str = "response_format") -> None:
    """Raise the 400 of a format that cannot be made at this rate."""
    if fmt not in ENCODERS:
        raise BadRequest(f'No format "{fmt}".{nearest(fmt, ENCODERS)}', param=param)
    rates = {"opus": OPUS_RATES, "mp3": MP3_RATES}.get(fmt)
    if rates and rate not in rates:
        message = f'"{fmt}" cannot carry this model\'s {rate} Hz. Formats that can: flac, pcm, wav.'
        raise BadRequest(message, param=param, code="unsupported_format")
    if fmt == "aac":
        pyav('"aac"', param)


def encode(fmt: str, rate: int, samples: np.ndarray) -> bytes:
    """A whole file of float32 [T], its header exact."""
    made = encoder(fmt, rate, live=False)
    return made.push(samples) + made.close()


def to_pcm16(samples: np.ndarray) -> bytes:
    """Little-endian 16-bit samples, rounded to nearest; full scale is 2^15, as libsndfile reads it, and is clipped."""
    return _int16(samples).tobytes()


def _int16(samples: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(samples * 32768.0), -32768, 32767).astype("<i2")


def wav_header(rate: int, data_bytes: int) -> bytes:
    """44 bytes of RIFF header for mono PCM16; `LIVE` for a stream of unknown length."""
    riff = LIVE if data_bytes == LIVE else data_bytes + 36
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        riff,
        b"WAVE",
        b"fmt ",
        16,
        1,
        1,
        rate,
        rate * 2,
        2,
        16,
        b"data",
        data_bytes,
    )


class Pcm(Plain):
    """Raw little-endian 16-bit samples."""

    def __init__(self, rate: int, live: bool) -> None:
        pass

    def push(self, samples: np.ndarray) -> bytes:
        return to_pcm16(samples)

    def close(self) -> bytes:
        return b""


class Wav(Plain):
    def __init__(self, rate: int, live: bool) -> None:
        self._rate, self._held = rate, None if live else bytearray()
        self._header = wav_header(rate, LIVE) if live else b""

    def push(self, samples: np.ndarray) -> bytes:
        data = to_pcm16(samples)
        if self._held is not None:
            self._held += data
            return b""
        header, self._header = self._header, b""
        return header + data

    def close(self) -> bytes:
        if self._held is None:
            return self._header
        return wav_header(self._rate, len(self._held)) + bytes(self._held)


class Sink(io.BytesIO):
    """What libsndfile writes to. Live, what has been taken stays as it is: late header fixes are lost."""

    def __init__(self) -> None:
        super().__init__()
        self._taken = 0

    def take(self) -> bytes:
        held = self.getbuffer()
        data = bytes(held[self._taken :])
        self._taken = len(held)
        return data


class Container:
    """A libsndfile encoder."""

    def __init__(self, rate: int, live: bool, container: str, subtype: str, **options: Any) -> None:
        self._sink, self._live = Sink(), live
        self._file = soundfile.SoundFile(self._sink, "w", rate, 1, subtype, format=container, **options)

    def push(self, samples: np.ndarray) -> bytes:
        self._file.write(_int16(samples) if self._file.subtype == "PCM_16" else np.clip(samples, -1.0, 1.0))
        return self._sink.take() if self._live else b""

    def close(self) -> bytes:
        self._file.close()
        return self._sink.take() if self._live else self._sink.getvalue()

    def discard(self) -> None:
        self._file.close()  # the library writes to the sink when it closes, so not when both are collected


class Mp3(Container):
    """Constant rate, so that players without a table of contents know times; a live stream has no table at all."""

    def __init__(self, rate: int, live: bool) -> None:
        super().__init__(rate, live, "MP3", "MPEG_LAYER_III", bitrate_mode="CONSTANT", compression_level=0.5)
        self._table = bytearray() if live else None

    def push(self, samples: np.ndarray) -> bytes:
        return self._without_table(super().push(samples))

    def close(self) -> bytes:
        return self._without_table(super().close())

    def _without_table(self, data: bytes) -> bytes:
        """Drop the first frame, LAME's table: in a stream it would be left with zeros for the length."""
        if self._table is None:
            return data
        self._table += data
        length = frame_bytes(bytes(self._table[:4]))
        if len(self._table) < max(4, length):
            return b""
        data, self._table = bytes(self._table[length:]), None
        return data


class Aac:
    """ADTS frames through PyAV."""

    def __init__(self, rate: int, live: bool) -> None:
        self._av, self._sink = pyav('"aac"', "response_format"), Sink()
        self._out = self._av.open(self._sink, "w", format="adts")
        self._stream = self._out.add_stream("aac", rate=rate, layout="mono")

    def push(self, samples: np.ndarray) -> bytes:
        frame = self._av.AudioFrame.from_ndarray(samples[None].astype(np.float32), format="fltp", layout="mono")
        frame.sample_rate = self._stream.rate
        self._out.mux(self._stream.encode(frame))
        return self._sink.take()

    def close(self) -> bytes:
        self._out.mux(self._stream.encode(None))
        self._out.close()
        return self._sink.take()

    def discard(self) -> None:
        self._out.close()


def _container(container: str, subtype: str) -> Callable[[int, bool], Encoder]:
    return lambda rate, live: Container(rate, live, container, subtype)


ENCODERS: dict[str, Callable[[int, bool], Encoder]] = {
    "wav": Wav,
    "pcm": Pcm,
    "flac": _container("FLAC", "PCM_16"),
    "mp3": Mp3,
    "opus": _container("OGG", "OPUS"),
    "aac": Aac,
}
