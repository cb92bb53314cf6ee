"""Uploaded sound to float32 samples, read in bounded chunks; every kind of bad file has its own 4xx.

libsndfile reads WAV, FLAC, OGG (Vorbis, Opus), MP3, AIFF, AU and CAF. M4A, MP4, AAC and WebM need PyAV, the extra
`media`; without it they are refused with the command that installs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from tempfile import SpooledTemporaryFile
from typing import BinaryIO

import numpy as np
import soundfile

from serving.api.media.mp3 import with_table
from serving.api.media.optional import pyav
from serving.api.media.spool import IN_MEMORY, Spool
from serving.core.contract import Audio
from serving.errors import BadRequest, TooLarge
from serving.settings import Limits

BLOCK = 1 << 16  # frames read at a time
UNKNOWN_LENGTH = (1 << 63) - 1  # what libsndfile says of a FLAC stream whose header has no length
MP3_SLACK = 2304  # frames: without a table libsndfile estimates an MP3's length, tags included

Block = np.ndarray  # float32 [frames, channels]


def decode_audio(file: BinaryIO, limits: Limits, param: str = "file", in_memory: int = IN_MEMORY) -> Audio:
    """The whole sound of `file` as Audio [channels, T]; more than `in_memory` bytes of it stay in a file.

    Raises `BadRequest` or `TooLarge`, never anything else.
    """
    file.seek(0)
    head = file.read(64)
    file.seek(0)
    if not head:
        raise BadRequest(f'"{param}" is empty.', param=param, code="empty_file")
    read = _read_av if _needs_av(head) else _read_soundfile
    with SpooledTemporaryFile(max_size=in_memory) as held:
        spool = Spool(held, in_memory)
        rate = _gather(read(file, param), spool, limits, param)
        if not spool.size:
            raise BadRequest(f'"{param}" holds no samples.', param=param, code="empty_audio")
        return spool.audio(rate)


def _gather(stream: Iterable[tuple[Block, int]], spool: Spool, limits: Limits, param: str) -> int:
    rate = frames = 0
    for block, rate in stream:
        _check_shape(block.shape[1], rate, limits, param)
        frames += len(block)
        if frames > limits.audio_seconds * rate:
            rule = f'"{param}" is longer than the limit of {limits.audio_seconds:g} seconds.'
            raise TooLarge(rule, param=param, code="audio_too_long")
        if spool.size + block.nbytes > limits.decoded_bytes:
            rule = f'"{param}" takes more than {limits.decoded_bytes} bytes when decoded.'
            raise TooLarge(rule, param=param, code="audio_too_large")
        if not np.isfinite(block).all():
            raise BadRequest(f'"{param}" holds samples that are not finite.', param=param, code="invalid_audio")
        spool.add(block)
    return rate


def _check_shape(channels: int, rate: int, limits: Limits, param: str) -> None:
    if channels > limits.channels:
        raise BadRequest(f'"{param}" has {channels} channels; at most {limits.channels} are taken.', param=param)
    if not 1 <= rate <= limits.sample_rate:
        rule = f'"{param}" has a sample rate of {rate} Hz; at most {limits.sample_rate} Hz are taken.'
        raise BadRequest(rule, param=param)


class Forward(soundfile.SoundFile):
    """Read once, in order: soundfile otherwise seeks after each read, which fails at the end of a live FLAC."""

    def seekable(self) -> bool:
        return False


def _read_soundfile(file: BinaryIO, param: str) -> Iterator[tuple[Block, int]]:
    try:
        with Forward(with_table(file)) as sound:
            promised, got = sound.frames, 0
            while len(block := sound.read(BLOCK, dtype="float32", always_2d=True)):
                got += len(block)
                yield block, sound.samplerate
            _check_complete(sound, file, promised, got, param)
    except soundfile.LibsndfileError as error:
        raise _undecodable(param, str(error.error_string).rstrip(".")) from None


def _check_complete(sound: soundfile.SoundFile, file: BinaryIO, promised: int, got: int, param: str) -> None:
    """Headers of live WAV streams promise the largest size there is; any other shortfall is a cut-off file."""
    missing = _missing_wav_bytes(file) if sound.format == "WAV" else 0
    if missing or got + MP3_SLACK * (sound.format == "MP3") < promised < UNKNOWN_LENGTH:
        raise BadRequest(f'"{param}" is cut off: it ends before its header says.', param=param, code="truncated_audio")


def _missing_wav_bytes(file: BinaryIO) -> int:
    """How many bytes the data chunk of a RIFF file promises and the file does not have; 0 for a live stream."""
    file.seek(0, 2)
    end = file.tell()
    file.seek(12)
    while len(header := file.read(8)) == 8:
        size = int.from_bytes(header[4:], "little")
        if header[:4] == b"data":
            return 0 if size >= 0x7FFFFF00 else max(0, file.tell() + size - end)
        file.seek(size + size % 2, 1)
    return 0


def _needs_av(head: bytes) -> bool:
    """ISO media (M4A, MP4), EBML (WebM, Matroska) and ADTS (AAC); ADTS differs from MP3 in its two layer bits."""
    adts = head[0] == 0xFF and len(head) > 1 and head[1] & 0xF6 == 0xF0
    return head[4:8] == b"ftyp" or head[:4] == b"\x1a\x45\xdf\xa3" or adts


def _read_av(file: BinaryIO, param: str) -> Iterator[tuple[Block, int]]:
    av = pyav(f'"{param}" is M4A, MP4, AAC or WebM, which', param)
    try:
        with av.open(file, "r") as container:  # an upload's file may be written too, which PyAV would do
            if not container.streams.audio:
                raise _undecodable(param, "it has no sound")
            resampler = av.AudioResampler(format="fltp")
            for frame in container.decode(audio=0):
                yield from _planes(resampler.resample(frame))
            yield from _planes(resampler.resample(None))
    except av.FFmpegError as error:
        raise _undecodable(param, error.strerror) from None


def _planes(frames: Iterable[object]) -> Iterator[tuple[Block, int]]:
    for frame in frames:
        yield frame.to_ndarray().T, frame.sample_rate  # type: ignore[attr-defined]


def _undecodable(param: str, why: str) -> BadRequest:
    return BadRequest(f'"{param}" could not be decoded: {why}.', param=param, code="invalid_audio")
