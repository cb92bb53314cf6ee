"""`/v1/audio/speech` and `/v1/audio/voices`."""

from __future__ import annotations

import base64
import io
import json

import httpx
import numpy as np
import openai
import pytest

from serving.api.media.decode import decode_audio
from serving.api.media.encode import to_pcm16
from serving.api.tests.fake import FakeEngine, Out, Sleep, client, live, make_app, wait_for
from serving.errors import StepFailed
from serving.settings import Limits

PATH = "/v1/audio/speech"
KEYS = ("mouth", "mute", "ears")
SOUND = (0.4 * np.sin(np.arange(24_000) * 300 * 2 * np.pi / 24_000)).astype(np.float32)
CHUNKS = np.split(SOUND, [1000, 5000, 5001, 20_000])


def speaking(task):
    return [*(Out("audio", chunk) for chunk in CHUNKS), Out("info", {"input_tokens": 3, "output_tokens": 25})]


def app_of(script=speaking, **settings):
    return make_app(FakeEngine(script), keys=KEYS, **settings)


def body(**fields):
    return {"model": "mouth", "input": "Hello.", **fields}


def decoded(data):
    return decode_audio(io.BytesIO(data), Limits())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fmt", "kind", "magic"),
    [
        ("wav", "audio/wav", b"RIFF"),
        ("flac", "audio/flac", b"fLaC"),
        ("mp3", "audio/mpeg", b"\xff"),
        ("opus", "audio/ogg", b"OggS"),
        ("pcm", "audio/pcm;rate=24000;channels=1;bits=16", to_pcm16(SOUND[:4])),
    ],
)
async def test_the_format_is_the_one_asked_for(fmt, kind, magic, stream):
    app, _ = app_of()
    async with client(app) as http:
        response = await http.post(PATH, json=body(response_format=fmt, stream=stream))
    assert response.status_code == 200
    assert response.headers["content-type"] == kind
    assert response.content.startswith(magic)
    assert ("content-length" in response.headers) == (not stream)
    if fmt in {"wav", "flac"}:
        assert to_pcm16(decoded(response.content).samples[0]) == to_pcm16(SOUND)
    if fmt == "pcm":
        assert response.content == to_pcm16(SOUND)


async def test_mp3_is_openais_default():
    app, _ = app_of()
    async with client(app) as http:
        assert (await http.post(PATH, json=body())).headers["content-type"] == "audio/mpeg"


async def test_events_carry_the_same_audio():
    app, _ = app_of()
    async with client(app) as http:
        response = await http.post(PATH, json=body(response_format="pcm", stream_format="sse"))
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    data = b"".join(base64.b64decode(e["audio"]) for e in events if e["type"] == "speech.audio.delta")
    assert data == to_pcm16(SOUND)
    assert events[-1] == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 3, "output_tokens": 25, "total_tokens": 28},
    }


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"input": ""}, "input", "at least 1"),
        ({"input": " \n "}, "input", "only spaces"),
        ({"input": 5}, "input", "string"),
        ({"input": "x" * 101}, "input", "at most 100"),
        ({"voice": "hgh"}, "voice", 'Did you mean "high"'),
        ({"voice": ""}, "voice", "at least 1"),
        ({"voice": "../../etc/passwd"}, "voice", "Valid"),
        ({"speed": 0}, "speed", "nearest valid value is 0.25"),
        ({"speed": 0.3}, "speed", "nearest valid value is 0.5"),
        ({"speed": "fast"}, "speed", "number"),
        ({"response_format": "ogg"}, "response_format", "opus"),
        ({"instructions": "whisper"}, "instructions", "not supported"),
        ({"model": "mute", "response_format": "opus"}, "response_format", "flac, pcm, wav"),
        ({"extra_body": {"seed": 1}}, "extra_body", "Unknown parameter"),
        ({"stream_format": "ssee"}, "stream_format", 'Did you mean "sse"'),
    ],
)
async def test_a_bad_field_is_a_400_that_says_why(fields, param, says):
    app, engine = app_of(limits={"text_chars": 100})
    async with client(app) as http:
        response = await http.post(PATH, json=body(**fields))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"] or "").split(".")[0] == param
    assert says in error["message"]
    assert not engine.submitted


async def test_a_model_without_voices_takes_any_and_says_that_it_does_not_matter():
    app, engine = app_of()
    async with client(app) as http:
        any_voice = await http.post(PATH, json=body(model="mute", voice="alloy", response_format="wav"))
        chosen = await http.post(PATH, json=body(voice={"id": "high"}, response_format="wav"))
    assert any_voice.headers["x-ignored-parameters"] == "voice"
    assert "x-ignored-parameters" not in chosen.headers
    assert engine.submitted[1].task.knobs.voice == "high"


async def test_no_sound_is_an_error_not_an_empty_file():
    app, _ = app_of(lambda task: [Out("audio", SOUND[:0])])
    async with client(app) as http:
        for fields in ({}, {"stream": True}, {"stream_format": "sse"}):
            response = await http.post(PATH, json=body(**fields))
            assert (response.status_code, response.json()["error"]["code"]) == (500, "no_output")


def test_a_stream_of_audio_that_fails_is_cut_and_never_looks_whole():
    app, engine = app_of(lambda task: [Out("audio", SOUND), StepFailed("node raised")])
    with live(app) as url:
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.post(url + PATH, json=body(response_format="wav", stream=True))
        failed = httpx.post(url + PATH, json=body(response_format="wav", stream_format="sse"))
        text = httpx.get(url + "/metrics").text
    assert failed.text.strip().split("\n\n")[-1].startswith("event: error")
    assert "speech.audio.done" not in failed.text
    assert 'status="500"} 2.0' in text
    assert not engine.running


def test_first_audio_leaves_before_the_last_is_made():
    app, engine = app_of(lambda task: [Out("audio", SOUND), Sleep(30)])
    with live(app) as url:
        with httpx.stream("POST", url + PATH, json=body(response_format="pcm", stream=True)) as response:
            expected, heard = to_pcm16(SOUND), b""
            parts = response.iter_raw()  # the network cuts where it likes
            while len(heard) < len(expected):
                heard += next(parts)
            assert heard == expected
        wait_for(lambda: engine.cancelled == [engine.submitted[0].request_id])
        metrics = httpx.get(url + "/metrics").text
    assert 'toolkit_first_output_seconds_count{model="mouth",route="/v1/audio/speech"} 1.0' in metrics


def test_the_openai_client_speaks():
    app, _ = app_of()
    with live(app) as url, openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as sdk:
        fields = {"model": "mouth", "voice": "low", "input": "Hello."}
        whole = sdk.audio.speech.create(response_format="pcm", **fields)
        assert whole.content == to_pcm16(SOUND)
        streamed = sdk.audio.speech.with_streaming_response.create(
            response_format="pcm", extra_body={"stream": True}, **fields
        )
        with streamed as response:
            assert b"".join(response.iter_bytes()) == to_pcm16(SOUND)


async def test_voices_are_listed_uploaded_used_and_deleted(tmp_path, tone):
    app, engine = app_of(media={"voices": tmp_path})
    path = "/v1/audio/voices"
    form = {"files": {"audio_sample": ("a.wav", tone)}, "data": {"name": "me", "text": "Hello"}}
    async with client(app) as http:
        made = await http.post(path, **form)
        again = await http.post(path, **form)
        listed = (await http.get(path)).json()["data"]
        await http.post(PATH, json=body(voice="me", response_format="wav"))
        gone = await http.delete(path + "/me")
        twice = await http.delete(path + "/me")
        left = (await http.get(path)).json()["data"]
    assert (made.status_code, made.json()["id"], made.json()["seconds"]) == (200, "me", 2.0)
    assert (again.status_code, again.json()["error"]["code"]) == (400, "voice_exists")
    assert [voice["id"] for voice in listed] == ["low", "high", "me"]
    clip = engine.submitted[0].task.inputs
    assert (clip["voice"].rate, clip["voice"].samples.shape, clip["voice_text"]) == (16_000, (1, 32_000), "Hello")
    assert (gone.json()["deleted"], twice.status_code) == (True, 404)
    assert [voice["id"] for voice in left] == ["low", "high"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "", "x" * 65, "a\x00b", "..", "C:\\x"])
async def test_a_voice_name_is_never_a_path(tmp_path, tone, name):
    app, _ = app_of(media={"voices": tmp_path / "voices"})
    form = {"files": {"audio_sample": ("a.wav", tone)}, "data": {"name": name}}
    async with client(app) as http:
        response = await http.post("/v1/audio/voices", **form)
    assert response.status_code == 400
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


async def test_uploads_are_off_without_a_folder_and_bounded_with_one(tmp_path, tone):
    form = {"files": {"audio_sample": ("a.wav", tone)}, "data": {"name": "me"}}
    async with client(app_of()[0]) as http:
        off = await http.post("/v1/audio/voices", **form)
    async with client(app_of(media={"voices": tmp_path}, limits={"voice_seconds": 1.0})[0]) as http:
        long = await http.post("/v1/audio/voices", **form)
    async with client(app_of(media={"voices": tmp_path}, limits={"voice_bytes": 100})[0]) as http:
        big = await http.post("/v1/audio/voices", **form)
    assert (off.status_code, off.json()["error"]["code"]) == (400, "voices_disabled")
    assert (long.status_code, big.status_code) == (413, 413)
    assert list(tmp_path.iterdir()) == []
