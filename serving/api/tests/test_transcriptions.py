"""`/v1/audio/transcriptions` and `/v1/audio/translations`: shapes, fields, formats, streams."""

from __future__ import annotations

import json

import pytest

from serving.api.protocol.transcription import Deltas
from serving.api.tests.fake import SEGMENTS, TEXT, FakeEngine, Out, client, make_app
from serving.core.contract import Segment
from serving.errors import StepFailed

PATH = "/v1/audio/transcriptions"


async def post(http, tone, path=PATH, **fields):
    return await http.post(path, files={"file": ("a.wav", tone)}, data={"model": "ears", **fields})


def error(response):
    return response.json()["error"]


async def test_json_is_the_stripped_text(tone):
    app, engine = make_app()
    async with client(app) as http:
        response = await post(http, tone)
    assert response.status_code == 200
    assert response.json() == {"text": TEXT, "usage": {"type": "duration", "seconds": 2.0}}
    (handle,) = engine.submitted
    audio = handle.task.inputs["audio"]
    assert (audio.rate, audio.samples.shape) == (16_000, (1, 32_000))
    assert response.headers["x-request-id"] == handle.request_id
    assert response.headers["x-seed"] == str(handle.seed)


@pytest.mark.parametrize(
    ("fmt", "kind", "expected"),
    [
        ("text", "text/plain", TEXT + "\n"),
        (
            "srt",
            "application/x-subrip",
            "1\n00:00:00,000 --> 00:00:01,500\nHello there.\n\n2\n00:00:01,500 --> 01:01:01,250\nHow are you?\n",
        ),
        (
            "vtt",
            "text/vtt",
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello there.\n\n00:00:01.500 --> 01:01:01.250\nHow are you?\n",
        ),
    ],
)
async def test_plain_formats(tone, fmt, kind, expected):
    app, _ = make_app()
    async with client(app) as http:
        response = await post(http, tone, response_format=fmt)
    assert response.text == expected
    assert response.headers["content-type"].startswith(kind)


async def test_verbose_json_has_segments_by_default_and_words_when_asked(tone):
    app, engine = make_app()
    async with client(app) as http:
        plain = (await post(http, tone, response_format="verbose_json")).json()
        both = {"timestamp_granularities[]": ["word", "segment"]}
        full = (await post(http, tone, response_format="verbose_json", **both)).json()
    assert plain["language"] == "english"
    assert [s["text"] for s in plain["segments"]] == [s.text for s in SEGMENTS]
    assert set(plain["segments"][0]) == {
        "id", "seek", "start", "end", "text", "tokens", "temperature", "avg_logprob", "compression_ratio",
        "no_speech_prob",
    }  # fmt: skip
    assert "words" not in plain
    assert [w["word"] for w in full["words"]] == ["Hello", "there.", "How"]
    asked = [handle.task.knobs.timestamp_granularities for handle in engine.submitted]
    assert asked == [("segment",), ("word", "segment")]


async def test_silence_is_an_empty_text_not_an_error(tone):
    app, _ = make_app(FakeEngine(lambda task: [Out("info", {"language": "english"})]))
    async with client(app) as http:
        response = await post(http, tone, response_format="verbose_json")
    assert (response.status_code, response.json()["text"], response.json()["segments"]) == (200, "", [])


async def test_knobs_reach_the_model(tone):
    app, engine = make_app()
    async with client(app) as http:
        await post(http, tone, language="de", prompt="Names", temperature="0.5", beam_size="3", seed="7")
        await post(http, tone, "/v1/audio/translations")
    first, second = engine.submitted
    knobs = first.task.knobs
    assert (knobs.language, knobs.prompt, knobs.temperature, knobs.beam_size) == ("de", "Names", 0.5, 3)
    assert (knobs.task, second.task.knobs.task) == ("transcribe", "translate")
    assert first.seed == 7


@pytest.mark.parametrize(
    ("fields", "param", "code", "says"),
    [
        ({"model": ""}, "model", "missing_required_parameter", "must provide a model"),
        ({"temperature": "1.5"}, "temperature", "invalid_value", "nearest valid value is 1.0"),
        ({"temperature": "-0.1"}, "temperature", "invalid_value", "nearest valid value is 0.0"),
        ({"temperature": "hot"}, "temperature", "invalid_type", "number"),
        ({"beam_size": "9"}, "beam_size", "invalid_value", "nearest valid value is 8"),
        ({"lenguage": "en"}, "lenguage", "unknown_parameter", 'Did you mean "language"'),
        ({"response_format": "jsn"}, "response_format", "invalid_value", 'Did you mean "json"'),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities", "invalid_value", "verbose_json"),
        ({"stream": "true", "response_format": "srt"}, "response_format", "unsupported_format", "json, text"),
        ({"include[]": "logprobs"}, "include", "unsupported_parameter", "not supported"),
        ({"seed": "-1"}, "seed", "invalid_value", "at least 0"),
    ],
)  # fmt: skip
async def test_a_bad_field_is_a_400_that_says_why(tone, fields, param, code, says):
    app, engine = make_app()
    async with client(app) as http:
        response = await post(http, tone, **fields)
    assert response.status_code == 400
    assert (error(response)["param"], error(response)["code"]) == (param, code)
    assert says in error(response)["message"]
    assert not engine.submitted


async def test_a_wrong_granularity_names_the_right_one(tone):
    app, _ = make_app()
    async with client(app) as http:
        response = await post(http, tone, response_format="verbose_json", **{"timestamp_granularities[]": "words"})
    assert response.status_code == 400
    assert error(response)["param"] == "timestamp_granularities.0"
    assert 'Did you mean "word"' in error(response)["message"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"language": "de"}, 400),
        ({"temperature": "0.3"}, 400),
        ({"temperature": "0"}, 200),
        ({"prompt": "x"}, 400),
    ],
)
async def test_a_model_without_a_knob_takes_only_openais_default(tone, fields, status):
    app, _ = make_app()
    async with client(app) as http:
        response = await post(http, tone, model="plain", **fields)
    assert response.status_code == status
    if status == 400:
        assert error(response)["code"] == "unsupported_parameter"


async def test_fields_without_effect_are_named(tone):
    app, _ = make_app()
    async with client(app) as http:
        response = await post(http, tone, chunking_strategy="auto")
    assert response.status_code == 200
    assert response.headers["x-ignored-parameters"] == "chunking_strategy"


async def test_a_stream_adds_up_to_its_done_event(tone):
    app, _ = make_app()
    async with client(app) as http:
        response = await post(http, tone, stream="true")
    *events, last = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    bodies = [json.loads(event) for event in events]
    assert last == "[DONE]"
    assert "".join(b["delta"] for b in bodies if b["type"] == "transcript.text.delta") == TEXT
    assert (bodies[-1]["type"], bodies[-1]["text"]) == ("transcript.text.done", TEXT)


@pytest.mark.parametrize("pieces", [["a", " ", "b "], ["  a b", "  ", " "], [" ", "", "x"], []])
def test_deltas_never_take_back_a_space(pieces):
    deltas = Deltas()
    made = [deltas.push(piece) for piece in pieces]
    assert "".join(made) == "".join(pieces).strip() == deltas.sent


async def test_a_failure_before_the_first_byte_is_a_status_even_for_a_stream(tone):
    app, _ = make_app(FakeEngine(lambda task: [StepFailed("node raised")]))
    async with client(app) as http:
        response = await post(http, tone, stream="true")
    assert response.status_code == 500
    assert error(response)["code"] == "step_failed"


async def test_a_failure_after_the_first_byte_is_the_last_event(tone):
    app, engine = make_app(FakeEngine(lambda task: [Out("segments", [Segment(0, 1, "Hi")]), StepFailed("node raised")]))
    async with client(app) as http:
        response = await post(http, tone, stream="true")
    blocks = response.text.strip().split("\n\n")
    assert blocks[-1].startswith("event: error")
    assert json.loads(blocks[-1].split("data: ")[1])["error"]["code"] == "step_failed"
    assert "transcript.text.done" not in response.text
    assert "[DONE]" not in response.text
    assert not engine.running


@pytest.mark.parametrize(
    ("model", "status", "code", "says"),
    [
        ("eers", 404, "model_not_found", 'Did you mean "ears"'),
        ("deaf", 400, "unsupported_model", "ears, plain"),
    ],
)
async def test_a_model_that_cannot(tone, model, status, code, says):
    app, _ = make_app()
    async with client(app) as http:
        response = await post(http, tone, model=model)
    assert (response.status_code, error(response)["code"]) == (status, code)
    assert says in error(response)["message"]


async def test_translation_by_a_model_that_cannot_translate(tone):
    app, _ = make_app()
    async with client(app) as http:
        response = await post(http, tone, "/v1/audio/translations", model="plain")
    assert (response.status_code, error(response)["code"]) == (400, "unsupported_model")
    assert "ears" in error(response)["message"]


async def test_a_route_that_nothing_loaded_serves_says_what_would(tone):
    app, _ = make_app(keys=("deaf",))
    async with client(app) as http:
        response = await post(http, tone)
    assert (response.status_code, error(response)["code"]) == (404, "route_not_served")
    assert "ears, plain" in error(response)["message"]


@pytest.mark.parametrize("stream", ["false", "true"])
async def test_windows_heard_in_full_are_said_and_counted(tone, stream):
    told = [Out("segments", SEGMENTS), Out("info", {"full_windows": 2})]
    app, _ = make_app(FakeEngine(lambda task: told))
    async with client(app) as http:
        fields = {"stream": "true"} if stream == "true" else {"response_format": "verbose_json"}
        response = await post(http, tone, **fields)
        metrics = (await http.get("/metrics")).text
    assert response.status_code == 200
    assert stream == "true" or response.json()["full_windows"] == 2
    (line,) = [line for line in metrics.splitlines() if line.startswith("toolkit_full_windows_total{")]
    assert line.endswith(" 2.0")
