"""What a served Whisper answers to sound and fields that are not as they should be; nothing stays behind."""

from __future__ import annotations

import io
import socket
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import soundfile

from oracles import speech
from parity.families.whisper_openai import RATE, spoken
from parity.harness.text import whisper_normaliser, word_error_rate
from perf.launch import running, toolkit

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
    before = held(url)
    response = ask(url, key, make())
    assert response.status_code == 400
    assert held(url) == before
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
    comes_back_to(url, before)
    assert (before["in_server"], before["requests"]) == (0, 0)
    assert ask(url, key, sound(spoken(1)[0])).status_code == 200


def comes_back_to(url: str, before: dict[str, object]) -> None:
    deadline = time.monotonic() + 60
    while held(url) != before:
        assert time.monotonic() < deadline, (before, held(url))
        time.sleep(0.1)


def test_a_client_that_leaves_in_its_upload_leaves_nothing(key, url):
    before, at = held(url), httpx.URL(url)
    head = (
        f"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: {at.host}\r\ncontent-length: 5000000\r\n"
        "content-type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
        'content-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    )
    with socket.create_connection((at.host, at.port)) as client:
        client.sendall(head.encode() + sound(np.concatenate(spoken(12)))[:1_000_000])
        deadline = time.monotonic() + 30
        while held(url)["in_server"] != before["in_server"] + 1:
            assert time.monotonic() < deadline
    comes_back_to(url, before)


HOURS, AS_FLOATS = 3, 3 * 3600 * RATE * 4


@pytest.mark.nightly
def test_three_hours_are_never_whole_in_memory(key, tmp_path):
    """Decoded they take 691 MB; the server's peak rises by about 100 MB, and what is said at their end is heard."""
    samples = np.zeros(HOURS * 3600 * RATE, np.int16)
    said = (spoken(1)[0] * 32767).astype(np.int16)
    samples[-len(said) :] = said
    (tmp_path / "long.flac").write_bytes(sound(samples, fmt="FLAC"))
    with running(toolkit(key, "--profile", "exact"), tmp_path) as server:
        url, pid = server.target.url, server.pid
        assert ask(url, key, sound(spoken(1)[0])).status_code == 200
        before, most = held(url), peak(pid)
        form = {"model": key, "clip_timestamps": [0, 5, HOURS * 3600 - len(said) / RATE, HOURS * 3600]}
        with (tmp_path / "long.flac").open("rb") as file:
            response = httpx.post(f"{url}/v1/audio/transcriptions", files={"file": file}, data=form, timeout=600)
        assert response.status_code == 200, response.text
        print(f"peak resident memory rose from {most >> 20} to {peak(pid) >> 20} MiB")
        assert peak(pid) - most < AS_FLOATS / 4
        assert held(url) == before
        found = word_error_rate([speech.clips()[0].text], [response.json()["text"]], whisper_normaliser())
        assert found.rate <= 0.1


def peak(pid: int) -> int:
    """The most bytes that a process has had resident, files that it maps included."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) << 10
