"""What a served Whisper answers to sound and fields that are not as they should be; nothing stays behind."""

from __future__ import annotations

import io
import time

import httpx
import numpy as np
import pytest
import soundfile

from oracles import speech
from parity.families.whisper_openai import RATE, spoken
from parity.harness.text import whisper_normaliser, word_error_rate

KEY = "whisper_tiny_en"
pytestmark = pytest.mark.parametrize("key", [KEY])


@pytest.fixture
def url(served, key):
    return served(key, numerics="invariant", profile="exact")


def sound(samples: np.ndarray, rate: int = RATE, fmt: str = "WAV", subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, subtype, format=fmt)
    return buffer.getvalue()


def ask(url: str, key: str, data: bytes, path: str = "transcriptions", **fields: str) -> httpx.Response:
    form = {"model": key, **fields}
    return httpx.post(f"{url}/v1/audio/{path}", files={"file": ("a.wav", data)}, data=form, timeout=120)


def held(url: str) -> dict[str, object]:
    """What the server holds for requests: seats, slots, pages."""
    info = httpx.get(url + "/v1/server_info").json()
    engine = {name: info["engine"][name] for name in ("requests", "waiting", "free_slots")}
    lines = httpx.get(url + "/metrics").text.splitlines()
    pools = dict(line.rsplit(" ", 1) for line in lines if line.startswith("toolkit_pool_"))
    return {"in_server": info["in_server"], **engine, **pools}


REFUSED = {
    "empty": (lambda: b"", "empty_file"),
    "text": (lambda: b"This is a text, whatever its name says. " * 20, "invalid_audio"),
    "half an MP3": (lambda: sound(spoken(1)[0], fmt="MP3")[:9000], None),
    "no samples": (lambda: sound(np.zeros(0, np.float32)), "empty_audio"),
    "not finite": (lambda: sound(np.array([0.1, np.nan] * 99, np.float32), subtype="FLOAT"), "invalid_audio"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_no_sound_is_a_400(key, url, name):
    make, code = REFUSED[name]
    response = ask(url, key, make())
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "file"
    assert error["code"] == code or (code is None and error["code"] in {"truncated_audio", "invalid_audio"})


@pytest.mark.parametrize("seconds", [0.0, 3.0], ids=["one sample", "silence"])
def test_silence_is_an_empty_text(key, url, seconds):
    samples = np.zeros(max(1, int(seconds * RATE)), np.float32)
    response = ask(url, key, sound(samples), response_format="verbose_json")
    assert response.status_code == 200
    found = response.json()
    assert (found["text"], found["segments"]) == ("", [])
    assert found["duration"] == pytest.approx(seconds, abs=1e-3)


def test_stereo_at_8_khz_is_heard(key, url):
    samples = np.interp(np.arange(0, len(spoken(1)[0]), 2), np.arange(len(spoken(1)[0])), spoken(1)[0])
    response = ask(url, key, sound(np.stack([samples, samples], 1), 8000, subtype="PCM_U8"))
    said, heard = speech.clips()[0].text, response.json()["text"]
    assert word_error_rate([said], [heard], whisper_normaliser()).rate <= 0.1


def test_five_hours_are_a_413(key, url):
    response = ask(url, key, sound(np.zeros(5 * 3600 * 2000, np.int16), 2000, "FLAC"))
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "audio_too_long"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("transcriptions", {"language": "klingon"}, "language"),
        ("transcriptions", {"language": "de"}, "language"),
        ("transcriptions", {"lenguage": "en"}, "lenguage"),
        ("translations", {}, "task"),
    ],
    ids=["unknown language", "a language of other models", "unknown field", "translation by an English-only model"],
)
def test_a_field_that_cannot_be_is_a_400(key, url, path, fields, param):
    response = ask(url, key, sound(spoken(1)[0]), path, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("stream", ["false", "true"])
@pytest.mark.parametrize("after", [0.02, 1.0], ids=["at once", "late"])
def test_a_client_that_leaves_leaves_nothing(key, url, stream, after):
    before = held(url)
    long = sound(np.concatenate(spoken(12) * 3))
    form = {"model": key, "stream": stream}
    with pytest.raises(httpx.TimeoutException):
        httpx.post(f"{url}/v1/audio/transcriptions", files={"file": ("a.wav", long)}, data=form, timeout=after)
    deadline = time.monotonic() + 60
    while held(url) != before:
        assert time.monotonic() < deadline, (before, held(url))
        time.sleep(0.1)
    assert (before["in_server"], before["requests"]) == (0, 0)
    assert ask(url, key, sound(spoken(1)[0])).status_code == 200
