"""Codecs: every format decodes to what went in, whole and live; every kind of bad file has its own answer."""

from __future__ import annotations

import io
import struct
import wave
from pathlib import Path
from tempfile import SpooledTemporaryFile

import numpy as np
import pytest
import soundfile

from serving.api.media.decode import decode_audio
from serving.api.media.encode import ENCODERS, LIVE, encode, encoder, to_pcm16
from serving.api.media.mp3 import TAGS, frames
from serving.api.media.spool import Spooled
from serving.errors import BadRequest, TooLarge
from serving.settings import Limits

RATE = 24_000
LENGTH = 2 * RATE + 123
SOUND = (0.4 * np.sin(np.arange(LENGTH) * 440 * 2 * np.pi / RATE)).astype(np.float32)
FILES = ("wav", "flac", "mp3", "opus")
MAGIC = {"wav": b"RIFF", "flac": b"fLaC", "opus": b"OggS"}


def streamed(fmt: str, pieces: int) -> bytes:
    made = encoder(fmt, RATE, live=True)
    return b"".join([*map(made.push, np.array_split(SOUND, pieces)), made.close()])


def decode(data: bytes, **limits):
    return decode_audio(io.BytesIO(data), Limits(**limits))


@pytest.mark.parametrize("fmt", FILES)
def test_a_whole_file_keeps_its_length_to_the_sample(fmt):
    sound = decode(encode(fmt, RATE, SOUND))
    assert (sound.rate, sound.samples.shape) == (RATE, (1, LENGTH))
    error = sound.samples[0] - SOUND
    if fmt in {"wav", "flac"}:
        assert np.abs(error).max() <= 0.5 / 32768
    else:
        assert 10 * np.log10(np.square(SOUND).sum() / np.square(error).sum()) > 20


@pytest.mark.parametrize("fmt", FILES)
@pytest.mark.parametrize("pieces", [1, 7, 400])
def test_a_live_stream_loses_nothing(fmt, pieces):
    sound = decode(streamed(fmt, pieces))
    if fmt == "mp3":  # no table in a stream, so the coder's delay and padding stay
        assert LENGTH <= sound.samples.shape[1] <= LENGTH + 3 * 1152
        tail = np.abs(sound.samples[0, LENGTH - 1200 : LENGTH]).max()
        assert tail > 0.3
    else:
        assert sound.samples.shape == (1, LENGTH)
    if fmt in {"wav", "flac"}:
        assert to_pcm16(sound.samples[0]) == to_pcm16(SOUND)


@pytest.mark.parametrize("fmt", sorted(MAGIC))
def test_a_live_stream_has_one_header(fmt):
    assert streamed(fmt, 9).count(MAGIC[fmt]) >= 1
    assert streamed(fmt, 9).startswith(MAGIC[fmt])
    if fmt != "opus":  # every Ogg page has the mark
        assert streamed(fmt, 9).count(MAGIC[fmt]) == 1


def test_a_live_mp3_has_no_table_of_a_length_it_does_not_know():
    data = streamed("mp3", 9)
    offset, length = next(frames(data))
    assert offset == 0
    assert not any(tag in data[:length] for tag in TAGS)
    assert sum(length for _, length in frames(data)) == len(data)


def test_sizes_in_wav_headers():
    with wave.open(io.BytesIO(encode("wav", RATE, SOUND))) as file:
        assert (file.getnframes(), file.getframerate(), file.getnchannels(), file.getsampwidth()) == (
            LENGTH,
            RATE,
            1,
            2,
        )
    live = streamed("wav", 3)
    assert struct.unpack("<I", live[4:8])[0] == struct.unpack("<I", live[40:44])[0] == LIVE
    assert live[44:] == to_pcm16(SOUND) == encode("pcm", RATE, SOUND)


@pytest.mark.parametrize("tag", [b"", b"ID3\x04\x00\x00\x00\x00\x01\x05" + bytes(133)])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_mp3_of_variable_rate_without_a_table_is_read_to_its_end(tag, channels, rate):
    quiet, loud = np.zeros((rate, channels)), np.random.default_rng(0).uniform(-0.5, 0.5, (2 * rate, channels))
    buffer = io.BytesIO()
    soundfile.write(buffer, np.concatenate([loud, quiet, loud]), rate, format="MP3", bitrate_mode="VARIABLE")
    data = buffer.getvalue()
    _, length = next(frames(data))
    assert b"Xing" in data[:length]
    assert len({length for _, length in frames(data)}) > 2
    sound = decode(tag + data[length:])
    assert sound.samples.shape[0] == channels
    assert 5 * rate <= sound.samples.shape[1] <= 5 * rate + 3 * 1152
    assert np.abs(sound.samples[:, -rate:]).max() > 0.3


def test_an_empty_stream_is_still_a_file():
    assert encoder("wav", RATE, live=True).close().startswith(b"RIFF")


def test_loud_samples_are_clipped_not_wrapped():
    assert np.frombuffer(to_pcm16(np.array([2.0, -2.0, 1.0])), "<i2").tolist() == [32767, -32768, 32767]


@pytest.mark.parametrize(
    ("fmt", "rate", "says"),
    [("opus", 44_100, "flac, pcm, wav"), ("mp3", 96_000, "flac, pcm, wav"), ("mp4", RATE, 'Did you mean "mp3"')],
)
def test_a_format_that_cannot_be_made_is_refused(fmt, rate, says):
    with pytest.raises(BadRequest, match=says):
        encoder(fmt, rate, live=True)


@pytest.mark.parametrize("pieces", [1, 9])
def test_aac_keeps_every_sample(pieces):
    sound = decode(streamed("aac", pieces))
    assert (sound.rate, sound.samples.shape[0]) == (RATE, 1)
    assert LENGTH <= sound.samples.shape[1] <= LENGTH + 3 * 1024


@pytest.mark.parametrize(("container", "codec", "rate"), [("ipod", "aac", RATE), ("webm", "libopus", 48_000)])
def test_m4a_and_webm_are_read_with_pyav(container, codec, rate):
    import av

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as out:
        stream = out.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(SOUND[None], format="fltp", layout="mono")
        frame.sample_rate = rate
        out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    sound = decode(buffer.getvalue())
    assert sound.rate == rate
    assert LENGTH <= sound.samples.shape[1] <= LENGTH + 3 * 1024
    with SpooledTemporaryFile(max_size=1 << 20) as uploaded:
        uploaded.write(buffer.getvalue())
        uploaded.seek(0)
        np.testing.assert_array_equal(decode_audio(uploaded, Limits(), "file").samples, sound.samples)
    with pytest.raises(BadRequest):
        decode(buffer.getvalue()[:1000] if container == "ipod" else buffer.getvalue()[:40])


def test_aac_without_pyav_is_refused_with_the_hint(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadRequest, match="pip install"):
        encoder("aac", RATE, live=False)
    with pytest.raises(BadRequest, match="pip install"):
        decode(b"\x00\x00\x00\x20ftypM4A " + bytes(100))
    assert set(ENCODERS) == {"wav", "pcm", "flac", "mp3", "opus", "aac"}


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 192_000])
@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_every_depth_and_rate_of_wav_is_read_in_stereo(rate, subtype):
    stereo = np.stack([SOUND[:5000], -SOUND[:5000]], 1)
    buffer = io.BytesIO()
    soundfile.write(buffer, stereo, rate, subtype, format="WAV")
    sound = decode(buffer.getvalue())
    assert (sound.rate, sound.samples.shape, sound.samples.dtype) == (rate, (2, 5000), np.float32)
    np.testing.assert_allclose(sound.samples, stereo.T, atol=0.01 if subtype == "PCM_U8" else 1e-4)


def floats(samples) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.asarray(samples, np.float32), RATE, "FLOAT", format="WAV")
    return buffer.getvalue()


BAD = {
    "empty": (b"", "empty_file"),
    "text": (b"This is not a sound at all, whatever its name says." * 9, "invalid_audio"),
    "noise": (np.random.default_rng(0).bytes(5000), "invalid_audio"),
    "no samples": (floats([]), "empty_audio"),
    "nan": (floats([0.0, np.nan]), "invalid_audio"),
    "infinite": (floats([0.0, np.inf]), "invalid_audio"),
    "nine channels": (floats(np.zeros((10, 9))), "invalid_value"),
    **{f"half a {fmt}": (encode(fmt, RATE, SOUND)[:-5000], None) for fmt in FILES},
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_a_400(name):
    data, code = BAD[name]
    with pytest.raises(BadRequest) as error:
        decode(data)
    assert error.value.status == 400
    assert error.value.param == "file"
    assert error.value.code == (code or error.value.code)
    assert code or error.value.code in {"truncated_audio", "invalid_audio"}


@pytest.mark.parametrize("limits", [{"audio_seconds": 1.0}, {"decoded_bytes": 100_000}])
def test_a_long_file_is_a_413_before_it_is_all_read(limits):
    with pytest.raises(TooLarge):
        decode(encode("flac", RATE, SOUND), **limits)


def test_one_sample_is_a_sound():
    assert decode(floats([0.5])).samples.tolist() == [[0.5]]


def test_a_live_wav_is_read_to_its_end():
    assert decode(streamed("wav", 2)).samples.shape == (1, LENGTH)


@pytest.mark.parametrize("channels", [1, 2])
def test_a_long_file_is_read_from_disk_and_leaves_nothing(channels, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sound = np.stack([SOUND, -SOUND], 1)[:, :channels]
    buffer = io.BytesIO()
    soundfile.write(buffer, sound, RATE, "FLOAT", format="WAV")
    short = decode_audio(buffer, Limits())
    long = decode_audio(buffer, Limits(), in_memory=100_000)
    assert isinstance(long, Spooled)
    assert not isinstance(short, Spooled)
    assert (long.rate, long.samples.shape, long.seconds) == (short.rate, short.samples.shape, short.seconds)
    for start, stop in ((0, 10), (LENGTH - 5, LENGTH), (0, LENGTH), (777, 31_000)):
        part = long.read(start, stop)
        assert np.array_equal(part, short.read(start, stop))
        assert not np.shares_memory(part, long.samples)
    assert list(tmp_path.iterdir()) == []
    assert resident(long) == 0


def resident(sound: Spooled) -> int:
    """Pages of the spooled file that the process holds, by what the kernel says of its mappings."""
    at = f"{sound.samples.ctypes.data:x}-"
    lines = Path("/proc/self/smaps").read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(at))
    return int(next(line for line in lines[first:] if line.startswith("Rss:")).split()[1])
