"""The Python client, sync and async, against a real server over the fake engine."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from serving.api.media.encode import encode, to_pcm16
from serving.api.tests.fake import TEXT, FakeEngine, Out, answer, live, make_app
from serving.core.contract import Delta
from serving.errors import StepFailed
from toolkit.client import APIError, AsyncClient, Client

SOUND = np.linspace(-0.5, 0.5, 2400, dtype=np.float32)
FRAMES = np.zeros((2, 16, 16, 3), np.uint8)
WAV = encode("wav", 24_000, SOUND)
SCRIPTS = {
    "transcribe": answer,
    "speak": lambda task: [Out("audio", SOUND[:1000]), Out("audio", SOUND[1000:])],
    "chat": lambda task: [Out("text", Delta(text="Good ")), Out("text", Delta(text="day."))],
    "image": lambda task: [Out("image", FRAMES[0])],
    "video": lambda task: [Out("video", FRAMES)],
    "generate": lambda task: [Out("action", FRAMES[0, 0])],
}


@pytest.fixture(scope="module")
def server():
    engine = FakeEngine(lambda task: SCRIPTS[task.kind](task))
    app, _ = make_app(engine, keys=("ears", "mouth", "talker", "painter", "filmer", "actor"), api_keys=("key",))
    with live(app) as url:
        yield url, engine


@pytest.fixture
def sync(server):
    with Client(server[0], api_key="key") as client:
        yield client


def png():
    buffer = io.BytesIO()
    Image.fromarray(FRAMES[0]).save(buffer, "PNG")
    return buffer.getvalue()


CALLS = {
    "transcribe": ((("a.wav", WAV),), {"language": "en"}, lambda made: made["text"] == TEXT),
    "speak": (("Hello.",), {"response_format": "pcm", "voice": "low"}, lambda made: made == to_pcm16(SOUND)),
    "chat": (("Hello",), {}, lambda made: made["choices"][0]["message"]["content"] == "Good day."),
    "generate_image": (("a cat",), {"n": 2}, lambda made: len(made) == 2 and made[0].startswith(b"\x89PNG")),
    "edit_image": (([png(), png()], "a dog"), {"steps": 3}, lambda made: made[0].startswith(b"\x89PNG")),
    "generate_video": (("rain",), {"image": png(), "output_format": "gif"}, lambda made: made[0].startswith(b"GIF")),
    "generate": (("go",), {"audio": WAV}, lambda made: made["outputs"]["action"][0]["shape"] == [16, 3]),
}


@pytest.mark.parametrize("method", CALLS)
def test_every_method(sync, method):
    args, fields, right = CALLS[method]
    assert right(getattr(sync, method)(*args, **fields))


@pytest.mark.parametrize("method", CALLS)
async def test_every_method_async(server, method):
    args, fields, right = CALLS[method]
    async with AsyncClient(server[0], api_key="key") as client:
        assert right(await getattr(client, method)(*args, **fields))


def test_streams(sync, server):
    events = list(sync.stream("transcribe", ("a.wav", WAV)))
    assert "".join(event.get("delta", "") for event in events) == TEXT
    assert b"".join(sync.stream("speak", "Hello.", response_format="pcm")) == to_pcm16(SOUND)
    chunks = list(sync.stream("chat", "Hello"))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "Good day."
    assert [event["type"] for event in sync.stream("generate", "go")] == ["output", "done"]


async def test_streams_async(server):
    async with AsyncClient(server[0], api_key="key") as client:
        assert b"".join([part async for part in client.stream("speak", "Hi.", response_format="pcm")]) == to_pcm16(
            SOUND
        )
        events = [event async for event in client.stream("transcribe", ("a.wav", WAV))]
    assert events[-1]["text"] == TEXT


def test_errors_carry_the_servers_message(sync, server):
    with pytest.raises(APIError, match="nearest valid value is 1") as error:
        sync.transcribe(("a.wav", WAV), temperature=1.5)
    assert (error.value.status, error.value.param, error.value.code) == (400, "temperature", "invalid_value")
    assert error.value.request_id.startswith("req_")
    with pytest.raises(APIError, match="API key"):
        Client(server[0]).models()
    with pytest.raises(APIError, match='Did you mean "ears"'):
        list(sync.stream("transcribe", ("a.wav", WAV), model="eers"))


def test_a_failure_in_a_stream_is_raised(sync, server):
    engine, script = server[1], server[1].script
    engine.script = lambda task: [Out("text", Delta(text="Good ")), StepFailed("node raised")]
    try:
        with pytest.raises(APIError, match="node raised"):
            list(sync.stream("chat", "Hello"))
    finally:
        engine.script = script


def test_files_by_path_and_readiness(sync, server, tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(WAV)
    assert sync.transcribe(path)["text"] == sync.transcribe(str(path))["text"] == TEXT
    with path.open("rb") as file:
        assert sync.transcribe(file, translate=True, response_format="text").strip() == TEXT
    assert sync.ready()
    assert not Client("http://127.0.0.1:9").ready()


def test_importing_the_client_brings_no_torch():
    code = "import sys, toolkit.client; assert not {'torch', 'numpy', 'fastapi'} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", code], check=True)
