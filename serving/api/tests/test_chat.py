"""`/v1/chat/completions`."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import openai
import pytest
from PIL import Image

from serving.api.media.encode import encode, to_pcm16
from serving.api.tests.fake import FakeEngine, Out, client, live, make_app
from serving.errors import StepFailed

PATH = "/v1/chat/completions"
SOUND = np.linspace(-0.5, 0.5, 480, dtype=np.float32)
PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
FACTS = {"input_tokens": 5, "output_tokens": 2, "finish_reason": "length"}


def talking(task):
    sound = [Out("audio", SOUND)] if "audio" in getattr(task.knobs, "modalities", ()) else []
    return [Out("text", "Good "), Out("text", "day."), *sound, Out("info", FACTS)]


def app_of(script=talking, **settings):
    return make_app(FakeEngine(script), keys=("talker", "reader", "ears"), **settings)


def body(content="Hello", **fields):
    return {"model": "talker", "messages": [{"role": "user", "content": content}], **fields}


def png():
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


async def test_a_whole_answer():
    app, engine = app_of()
    async with client(app) as http:
        response = await http.post(PATH, json=body(max_tokens=7, temperature=0.5, stop=["\n"], seed=3))
    made = response.json()
    choice = made["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Good day.", "length")
    assert made["usage"] == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    knobs = engine.submitted[0].task.knobs
    assert (knobs.max_tokens, knobs.temperature, knobs.stop) == (7, 0.5, ("\n",))
    assert (engine.submitted[0].seed, response.headers["x-seed"]) == (3, "3")


async def test_a_stream_adds_up_and_ends_with_its_reason():
    app, _ = app_of()
    async with client(app) as http:
        response = await http.post(PATH, json=body(stream=True, stream_options={"include_usage": True}))
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    choices = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Good day."
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "length"]
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["total_tokens"]) == ([], 7)


async def test_a_failure_in_a_stream_never_looks_like_success():
    app, _ = app_of(lambda task: [Out("text", "Good "), StepFailed("node raised")])
    async with client(app) as http:
        response = await http.post(PATH, json=body(stream=True))
    assert response.text.strip().split("\n\n")[-1].startswith("event: error")
    assert "[DONE]" not in response.text
    assert '"finish_reason": "stop"' not in response.text


async def test_pictures_and_sound_arrive_decoded():
    app, engine = app_of()
    sound = base64.b64encode(encode("wav", 24_000, SOUND)).decode()
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": png()}},
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
    ]
    async with client(app) as http:
        assert (await http.post(PATH, json=body(parts))).status_code == 200
        refused = await http.post(PATH, json=body(parts, model="reader"))
    text, image, audio = engine.submitted[0].task.inputs["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is this?"}
    np.testing.assert_array_equal(image["image"], PIXELS)
    assert (audio["audio"].rate, audio["audio"].samples.shape) == (24_000, (1, 480))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages.0.content.1")


async def test_n_choices_have_seeds_of_their_own():
    app, engine = app_of()
    async with client(app) as http:
        made = (await http.post(PATH, json=body(n=3, seed=10))).json()
    assert [choice["index"] for choice in made["choices"]] == [0, 1, 2]
    assert sorted(handle.seed for handle in engine.submitted) == [10, 11, 12]
    assert len({handle.request_id for handle in engine.submitted}) == 3
    assert made["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("fmt", ["wav", "pcm16", "flac"])
async def test_spoken_answers_come_in_the_format_asked_for(fmt):
    app, engine = app_of()
    fields = {"modalities": ["text", "audio"], "audio": {"voice": "high", "format": fmt}}
    async with client(app) as http:
        message = (await http.post(PATH, json=body(**fields))).json()["choices"][0]["message"]
    data = base64.b64decode(message["audio"]["data"])
    assert message["audio"]["transcript"] == "Good day."
    magic = {"wav": b"RIFF", "flac": b"fLaC", "pcm16": to_pcm16(SOUND)}[fmt]
    assert data.startswith(magic)
    assert engine.submitted[0].task.knobs.voice == "high"


IMAGE = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"messages": []}, "messages", "at least 1 items"),
        ({"messages": None}, "messages", "must provide"),
        ({"messages": "Hello"}, "messages", ""),
        ({"messages": [{"role": "usr", "content": "x"}]}, "messages.0.role", 'Did you mean "user"'),
        ({"messages": [{"role": "user", "contents": "x"}]}, "messages.0.contents", 'Did you mean "content"'),
        ({"messages": [{"role": "user", "content": [{"type": "txt"}]}]}, "messages.0.content.0", 'Did you mean "text"'),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0.image_url.url", "data URL"),
        ({"messages": [{"role": "user", "content": [IMAGE] * 17}]}, "messages", "at most 16 pictures"),
        ({"temperature": 2.1}, "temperature", "nearest valid value is 2"),
        ({"temperature": "0.5"}, "temperature", "number"),
        ({"max_tokens": 0}, "max_tokens", "nearest valid value is 1"),
        ({"max_tokens": 2000}, "max_tokens", "nearest valid value is 1000"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens", "not both"),
        ({"n": 11}, "n", "at most 10"),
        ({"n": 2, "stream": True}, "n", "at most 1 in a stream"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"functions": [{}]}, "functions", "not supported"),
        ({"logprobs": True}, "logprobs", "not supported"),
        ({"tools": [{}]}, "tools", "not supported"),
        ({"top_k": 5}, "top_k", "Unknown"),
        ({"modalities": ["audio"]}, "audio", "needs"),
        ({"modalities": ["text", "audio"], "audio": {"voice": "lo", "format": "wav"}}, "voice", 'Did you mean "low"'),
        (
            {"modalities": ["text", "audio"], "audio": {"voice": "low", "format": "mp3"}, "stream": True},
            "audio.format",
            "pcm16",
        ),
        ({"model": "reader", "max_tokens": 5}, "max_tokens", "not supported"),
        ({"model": "ears"}, "model", "talker"),
    ],
)
async def test_a_bad_field_is_a_400_that_says_why(fields, param, says):
    app, engine = app_of()
    async with client(app) as http:
        response = await http.post(PATH, json={**body(), **fields})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert says in error["message"]
    assert not engine.submitted


async def test_fields_without_effect_are_named():
    app, _ = app_of()
    async with client(app) as http:
        response = await http.post(PATH, json=body(user="me", store=True, reasoning_effort="low"))
    assert set(response.headers["x-ignored-parameters"].split(", ")) == {"user", "store", "reasoning_effort"}


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"a": NaN}', b"\xff", b"[" * 100_000])
async def test_a_body_that_is_no_json_object_is_a_400(data):
    app, _ = app_of()
    async with client(app) as http:
        response = await http.post(PATH, content=data, headers={"content-type": "application/json"})
        other = await http.post(PATH, content=data, headers={"content-type": "text/plain"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
    assert (other.status_code, other.json()["error"]["code"]) == (415, "unsupported_content_type")


async def test_the_openai_client_chats():
    app, _ = app_of()
    messages = [{"role": "user", "content": "Hello"}]
    with live(app) as url:
        with openai.OpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as sdk:
            whole = sdk.chat.completions.create(model="talker", messages=messages)
            assert whole.choices[0].message.content == "Good day."
            stream = sdk.chat.completions.create(model="talker", messages=messages, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Good day."
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="any", max_retries=0) as sdk:
            stream = await sdk.chat.completions.create(model="talker", messages=messages, stream=True)
            assert [chunk.choices[0].finish_reason async for chunk in stream][-1] == "length"
