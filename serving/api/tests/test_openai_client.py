"""The official `openai` client, sync, async and streaming, against a real server over the fake engine."""

from __future__ import annotations

import openai
import pytest

from serving.api.tests.fake import TEXT, FakeEngine, Out, answer, live, make_app
from serving.core.contract import Segment
from serving.errors import StepFailed


@pytest.fixture(scope="module")
def server():
    app, engine = make_app(FakeEngine(answer), api_keys=("key",))
    with live(app) as url:
        yield url, engine


@pytest.fixture
def sdk(server):
    with openai.OpenAI(base_url=server[0] + "/v1", api_key="key", max_retries=0) as made:
        yield made


@pytest.fixture
def aio(server):
    return openai.AsyncOpenAI(base_url=server[0] + "/v1", api_key="key", max_retries=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transcription_and_translation(sdk, tone):
    file = ("a.wav", tone)
    assert sdk.audio.transcriptions.create(file=file, model="ears").text == TEXT
    assert sdk.audio.translations.create(file=file, model="ears").text == TEXT
    assert sdk.audio.transcriptions.create(file=file, model="ears", response_format="text").strip() == TEXT
    assert sdk.audio.transcriptions.create(file=file, model="ears", response_format="vtt").startswith("WEBVTT")


def test_verbose_transcription_with_words(sdk, tone):
    granularities = ["word", "segment"]
    made = sdk.audio.transcriptions.create(
        file=("a.wav", tone), model="ears", response_format="verbose_json", timestamp_granularities=granularities
    )
    assert (made.language, made.duration, len(made.segments), made.words[0].word) == ("english", 2.0, 2, "Hello")
    assert made.segments[1].start == 1.5


def test_streamed_transcription(sdk, tone):
    events = list(sdk.audio.transcriptions.create(file=("a.wav", tone), model="ears", stream=True))
    assert "".join(e.delta for e in events if e.type == "transcript.text.delta") == TEXT
    assert (events[-1].type, events[-1].text) == ("transcript.text.done", TEXT)


async def test_async_transcription(aio, tone):
    assert (await aio.audio.transcriptions.create(file=("a.wav", tone), model="ears")).text == TEXT
    stream = await aio.audio.transcriptions.create(file=("a.wav", tone), model="ears", stream=True)
    assert [event.type async for event in stream][-1] == "transcript.text.done"


def test_models(sdk):
    assert [model.id for model in sdk.models.list()] == ["ears", "plain", "deaf"]
    assert sdk.models.retrieve("ears").owned_by == "fake"


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"model": "eers"}, openai.NotFoundError, "model_not_found"),
        ({"model": "ears", "temperature": 3}, openai.BadRequestError, "invalid_value"),
        ({"model": "ears", "extra_body": {"beam": 3}}, openai.BadRequestError, "unknown_parameter"),
    ],
)
def test_errors_are_the_clients_own_classes(sdk, tone, fields, error, code):
    with pytest.raises(error) as raised:
        sdk.audio.transcriptions.create(file=("a.wav", tone), **fields)
    assert raised.value.code == code


def test_a_wrong_key(server, tone):
    made = openai.OpenAI(base_url=server[0] + "/v1", api_key="wrong", max_retries=0)
    with made, pytest.raises(openai.AuthenticationError):
        made.models.list()


def test_a_failure_in_a_stream_is_raised_by_the_client(server, sdk, tone):
    engine = server[1]
    engine.script = lambda task: [Out("segments", [Segment(0, 1, "Hi")]), StepFailed("node raised")]
    try:
        with pytest.raises(openai.APIError, match="node raised"):
            list(sdk.audio.transcriptions.create(file=("a.wav", tone), model="ears", stream=True))
    finally:
        engine.script = answer
