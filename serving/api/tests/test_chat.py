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
from serving.api.media.images import encode_video
from serving.api.tests.fake import FakeEngine, Out, Sleep, client, live, make_app
from serving.core.contract import Delta, TokenLogprob, ToolCall
from serving.errors import Overloaded, StepFailed

PATH = "/v1/chat/completions"
SOUND = np.linspace(-0.5, 0.5, 480, dtype=np.float32)
PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
MOVING = (np.arange(5 * 16 * 16 * 3) % 251).astype(np.uint8).reshape(5, 16, 16, 3)
FACTS = {"input_tokens": 5, "output_tokens": 2, "finish_reason": "length"}


def talking(task):
    sound = [Out("audio", SOUND)] if "audio" in getattr(task.knobs, "modalities", ()) else []
    return [Out("text", Delta(text="Good ")), Out("text", Delta(text="day.")), *sound, Out("info", FACTS)]


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
    app, _ = app_of(lambda task: [Out("text", Delta(text="Good ")), StepFailed("node raised")])
    async with client(app) as http:
        response = await http.post(PATH, json=body(stream=True))
    assert response.text.strip().split("\n\n")[-1].startswith("event: error")
    assert "[DONE]" not in response.text
    assert '"finish_reason": "stop"' not in response.text


ADD = ToolCall("call_1", "add", '{"a": 1}')
SUB = ToolCall("call_2", "sub", "{}")
TOKENS = (TokenLogprob(7, "é".encode()[:1], -0.5, (TokenLogprob(8, b"e", -0.4),)), TokenLogprob(9, b"!", -1.5))


def thorough(task):
    """Everything that an answer can hold; the first seed's is longer."""
    facts = {
        "input_tokens": 5,
        "output_tokens": 3,
        "reasoning_tokens": 1,
        "cached_tokens": 4,
        "finish_reason": "tool_calls",
    }
    return [
        Out("text", Delta(reasoning="Hm, ", token_ids=(3,))),
        Out("text", Delta(reasoning="so.", text="Let", logprobs=TOKENS[:1], token_ids=(4, 5))),
        Out("text", Delta(text=" me.", tool_calls=(ADD,), logprobs=TOKENS[1:])),
        Out("text", Delta()),
        Out("text", Delta(tool_calls=(SUB,))),
        Out("info", {**facts, "prompt_token_ids": [1, 2], "finish_reason": "tool_calls"}),
    ]


def shown(call):
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


SHOWN = [
    {"token": "�", "logprob": -0.5, "bytes": [0xC3], "top_logprobs": [{"token": "e", "logprob": -0.4, "bytes": [101]}]},
    {"token": "!", "logprob": -1.5, "bytes": [33], "top_logprobs": []},
]
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


async def test_thoughts_calls_logprobs_and_ids_of_a_whole_answer():
    app, _ = app_of(thorough)
    async with client(app) as http:
        made = (await http.post(PATH, json=body(logprobs=True, top_logprobs=1))).json()
        plain = (await http.post(PATH, json=body())).json()
    (choice,) = made["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Let me.",
        "refusal": None,
        "reasoning_content": "Hm, so.",
        "tool_calls": [shown(ADD), shown(SUB)],
    }
    assert (choice["finish_reason"], choice["token_ids"]) == ("tool_calls", [3, 4, 5])
    assert choice["logprobs"] == {"content": SHOWN, "refusal": None}
    assert (made["usage"], made["prompt_token_ids"]) == (USAGE, [1, 2])
    assert plain["choices"][0]["logprobs"] is None


async def test_thoughts_calls_logprobs_and_ids_of_streams_side_by_side():
    app, engine = app_of(thorough)
    fields = {"stream": True, "n": 3, "seed": 10, "logprobs": True, "stream_options": {"include_usage": True}}
    async with client(app) as http:
        response = await http.post(PATH, json=body(**fields))
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    assert sorted(handle.seed for handle in engine.submitted) == [10, 11, 12]
    assert all("usage" in chunk for chunk in chunks)
    assert chunks[-1]["usage"]["completion_tokens"] == 9
    for index in range(3):
        choices = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        deltas = [choice["delta"] for choice in choices]
        assert deltas[0]["role"] == "assistant"
        assert "".join(delta.get("content", "") for delta in deltas) == "Let me."
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm, so."
        calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
        assert calls == [{"index": 0, **shown(ADD)}, {"index": 1, **shown(SUB)}]
        assert [c for choice in choices if choice["logprobs"] for c in choice["logprobs"]["content"]] == SHOWN
        assert [token for choice in choices for token in choice.get("token_ids", ())] == [3, 4, 5]
        assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]


@pytest.mark.parametrize("stream", [True, False])
async def test_one_of_n_that_fails_fails_all_and_frees_the_rest(stream):
    app, engine = app_of()
    scripts = iter([[Sleep(30)], [StepFailed("node raised")]])
    engine.script = lambda task: next(scripts)
    async with client(app) as http:
        response = await http.post(PATH, json=body(n=2, stream=stream))
    assert (response.status_code, response.json()["error"]["code"]) == (500, "step_failed")
    assert not engine.running
    assert len(engine.cancelled) == 1


async def test_choices_are_all_taken_or_none():
    app, engine = app_of(lambda task: [Sleep(30)])
    submit, engine_count = engine.submit, iter(range(9))

    async def full(*args, **options):
        if next(engine_count) == 2:
            raise Overloaded("full")
        return await submit(*args, **options)

    engine.submit = full
    async with client(app) as http:
        assert (await http.post(PATH, json=body(n=3))).status_code == 503
    assert len(engine.cancelled) == 2
    assert not engine.running


async def test_what_a_client_got_it_can_send_back():
    app, engine = app_of(thorough)
    async with client(app) as http:
        message = (await http.post(PATH, json=body())).json()["choices"][0]["message"]
        history = [{"role": "user", "content": "1 + 1?"}, message | {"annotations": [], "name": None}]
        result = {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "2"}]}
        assert (await http.post(PATH, json=body(messages=[*history, result]))).status_code == 200
    _, said, returned = engine.submitted[-1].task.inputs["messages"]
    assert said == {
        "role": "assistant",
        "content": "Let me.",
        "reasoning_content": "Hm, so.",
        "tool_calls": (shown(ADD), shown(SUB)),
    }
    assert returned == {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "2"}]}


@pytest.mark.parametrize("fmt", ["gif", "webp", "mp4"])
async def test_films_arrive_as_frames_with_their_rate(fmt):
    app, engine = app_of()
    frames = np.repeat(np.arange(0, 250, 50, dtype=np.uint8), 16 * 32 * 3).reshape(5, 16, 32, 3)
    url = f"data:video/{fmt};base64,{base64.b64encode(encode_video(frames, 8.0, fmt)).decode()}"
    part = {"type": "video_url", "video_url": {"url": url}}
    async with client(app) as http:
        assert (await http.post(PATH, json=body([part]))).status_code == 200
        many = await http.post(PATH, json=body([part] * 5))
        other = await http.post(PATH, json=body([part], model="reader"))
    (sent,) = engine.submitted[0].task.inputs["messages"][0]["content"]
    assert (sent["type"], sent["video"].frames.shape) == ("video", (5, 16, 32, 3))
    assert abs(sent["video"].frames.astype(int) - frames).max() <= (0 if fmt == "webp" else 6)
    assert sent["video"].rate == pytest.approx(8, abs=0.4), "a GIF counts in hundredths of a second"
    assert "at most 4 films" in many.json()["error"]["message"]
    assert other.json()["error"]["param"] == "messages.0.content.0"


@pytest.mark.parametrize(
    ("data", "limits", "status"),
    [
        (b"no film", {}, 400),
        (encode_video(np.zeros((5, 16, 16, 3), np.uint8), 8.0, "mp4")[:200], {}, 400),
        (encode("wav", 24_000, SOUND), {}, 400),
        (encode_video(MOVING, 8.0, "mp4"), {"video_frames": 4}, 413),
        (encode_video(MOVING, 8.0, "gif"), {"video_frames": 4}, 413),
        (encode_video(MOVING, 8.0, "gif"), {"image_pixels": 255}, 413),
        (encode_video(MOVING, 8.0, "mp4"), {"decoded_bytes": 2000}, 413),
    ],
)
async def test_a_bad_film_is_refused(data, limits, status):
    app, engine = app_of(limits=limits)
    url = "data:video/mp4;base64," + base64.b64encode(data).decode()
    async with client(app) as http:
        response = await http.post(PATH, json=body([{"type": "video_url", "video_url": {"url": url}}]))
    assert (response.status_code, response.json()["error"]["param"]) == (status, "messages.0.content.0.video_url.url")
    assert not engine.submitted


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


async def test_choices_have_seeds_of_their_own():
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


CALLED = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
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
        ({"messages": [{"role": "user"}]}, "messages.0", "needs content"),
        ({"messages": [{"role": "tool", "content": "3"}]}, "messages.0", "tool_call_id"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALLED]}]}, "messages.0", "assistant"),
        ({"stream": "yes"}, "stream", "boolean"),
        ({"functions": [{}]}, "functions", "not supported"),
        ({"model": "reader", "logprobs": True}, "logprobs", "not supported"),
        ({"model": "reader", "tools": [{}]}, "tools", "not supported"),
        ({"model": "reader", "response_format": {"type": "json_object"}}, "response_format", "not supported"),
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
