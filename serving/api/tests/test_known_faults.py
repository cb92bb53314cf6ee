"""Faults of other systems that no other test here holds off; `docs/known-faults.md` has the whole list."""

from __future__ import annotations

import io
import json

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

from serving.api.app import route_table
from serving.api.media.decode import decode_audio
from serving.api.tests.fake import FakeEngine, Out, Sleep, answer, client, live, make_app, wait_for
from serving.settings import Limits

SPEECH = "/v1/audio/speech"
SOUND = (0.4 * np.sin(np.arange(24_000) * 300 * 2 * np.pi / 24_000)).astype(np.float32)
TEXT = "Good morning. A light wind will blow from the west. " * 40


def talking(task):
    return [Out("audio", part) for part in np.split(SOUND, [1, 1000, 20_001])]


@pytest.fixture(scope="module")
def served():
    app, engine = make_app(FakeEngine(talking), keys=("mouth", "actor"))
    with live(app) as url:
        yield url, engine


@pytest.mark.parametrize("fmt", ["wav", "flac", "mp3", "opus", "pcm"])
def test_a_stream_ends_cleanly_over_a_socket(served, fmt):
    """The last chunk, the last packet: a strict reader is content, and hears every sample."""
    url, _ = served
    asked = {"model": "mouth", "input": "Hello.", "response_format": fmt, "stream": True}
    data = httpx.post(url + SPEECH, json=asked).content  # raises where the encoding does not end
    heard = np.frombuffer(data, "<i2").size if fmt == "pcm" else decode_audio(io.BytesIO(data), Limits()).samples.size
    padding = 2304 if fmt == "mp3" else 0  # of the first and last frame: a live file cannot say how much of it
    assert 0 <= heard - SOUND.size <= padding


async def test_the_text_reaches_the_model_whole():
    """Splitting is the port's; no route does it, so that no two routes do it differently."""
    app, engine = make_app(FakeEngine(talking), keys=("mouth",))
    async with client(app) as http:
        response = await http.post(SPEECH, json={"model": "mouth", "input": TEXT})
    assert response.status_code == 200
    assert [handle.task.inputs["text"] for handle in engine.submitted] == [TEXT]


@pytest.mark.parametrize(
    ("path", "model"),
    [
        (SPEECH, "mouth"),
        ("/v1/chat/completions", "talker"),
        ("/v1/images/generations", "painter"),
        ("/generate", "actor"),
    ],
)
async def test_a_seed_in_the_wrong_place_is_refused(path, model):
    asked = {"input": "Hello.", "prompt": "a cat", "messages": [{"role": "user", "content": "Hello"}], "text": "go"}
    needed = {SPEECH: "input", "/v1/chat/completions": "messages", "/generate": "text"}.get(path, "prompt")
    body = {"model": model, needed: asked[needed], "extra_body": {"seed": 1}}
    app, engine = make_app(FakeEngine(answer), keys=("mouth", "talker", "painter", "actor"))
    async with client(app) as http:
        response = await http.post(path, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "extra_body")
    assert not engine.submitted


def test_cancel_reaches_no_request_but_its_own():
    """Two connections run; one cancels. There is no route that cancels whatever happens to run."""
    app, engine = make_app(FakeEngine(lambda task: [Out("note", "x"), Sleep(30)]), keys=("actor",))
    with live(app) as url:
        at = url.replace("http", "ws") + "/generate/ws"
        with connect(at) as first, connect(at) as second:
            for one in (first, second):
                one.send(json.dumps({"type": "open", "model": "actor"}))
                assert json.loads(one.recv(timeout=5))["type"] == "output"
            first.send(json.dumps({"type": "cancel"}))
            assert json.loads(first.recv(timeout=5))["type"] == "cancelled"
            assert engine.cancelled == [engine.submitted[0].request_id]
            assert list(engine.running) == [engine.submitted[1].request_id]
        wait_for(lambda: not engine.running)
    assert not any(word in spec.path for spec in route_table() for word in ("cancel", "interrupt", "abort"))


def test_films_are_answered_where_they_are_asked_for():
    """No job is kept, so none can be stuck, lost, or brought back by its own end."""
    assert [(spec.method, spec.path) for spec in route_table() if spec.path.startswith("/v1/videos")] == [
        ("POST", "/v1/videos/generations")
    ]
