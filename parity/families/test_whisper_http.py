"""Real tiny.en over HTTP against openai-whisper in this process: texts, segments, word times, in every format.

The server runs in the mode in which a row's result does not depend on its neighbours, so that eight at once must give
what one alone gives. The client is the official one.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

import openai
import pytest
from whisper.utils import get_writer

from oracles import speech
from parity.families.whisper_openai import reference_of, spoken

KEY = "whisper_tiny_en"
COUNT = 8
WORDS = {"response_format": "verbose_json", "timestamp_granularities": ["word", "segment"]}
FIELDS = ("start", "end", "text", "tokens", "temperature")
pytestmark = pytest.mark.parametrize("key", [KEY])


@pytest.fixture(scope="module")
def made():
    """The reference's transcripts, once they are made."""
    return []


@pytest.fixture
def expected(port, key, made):
    """What the reference's `transcribe` says of each clip, with the times of its words."""
    if not made:
        model = reference_of(port(key, rows=8).model)
        made += [model.transcribe(sound, fp16=False, word_timestamps=True) for sound in spoken(COUNT)]
    return made


@pytest.fixture
def url(served, key):
    return served(key, numerics="invariant", profile="exact")


@pytest.fixture
def sdk(url):
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def aio(url):
    return openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0)


def same(found: dict, reference: dict) -> None:
    """A verbose answer is the reference's transcript."""
    assert found["language"] == "english"
    assert found["text"] == reference["text"].strip()
    assert [{name: one[name] for name in FIELDS} for one in found["segments"]] == [
        {name: one[name] for name in FIELDS} for one in reference["segments"]
    ]
    for ours, theirs in zip(found["segments"], reference["segments"], strict=True):
        for name in ("avg_logprob", "compression_ratio", "no_speech_prob"):
            assert ours[name] == pytest.approx(theirs[name], abs=1e-4)
    words = [word for segment in reference["segments"] for word in segment["words"]]
    assert [(w["word"], w["start"], w["end"]) for w in found["words"]] == [
        (w["word"].strip(), w["start"], w["end"]) for w in words
    ]


def test_words_and_segments_alone(key, sdk, expected):
    for clip, reference in zip(speech.clips()[:2], expected, strict=False):
        found = sdk.audio.transcriptions.create(file=clip.path, model=key, **WORDS)
        same(found.to_dict(), reference)
        assert found.duration == pytest.approx(clip.seconds, abs=1e-3)


async def test_words_and_segments_eight_at_once(key, aio, expected):
    def ask(clip: speech.Clip):
        return aio.audio.transcriptions.create(file=clip.path, model=key, **WORDS)

    for found, reference in zip(await asyncio.gather(*map(ask, speech.clips()[:COUNT])), expected, strict=True):
        same(found.to_dict(), reference)


def test_a_stream(key, sdk, expected):
    events = list(sdk.audio.transcriptions.create(file=speech.clips()[0].path, model=key, stream=True))
    text = "".join(event.delta for event in events if event.type == "transcript.text.delta")
    assert (text, events[-1].type, events[-1].text) == (text, "transcript.text.done", expected[0]["text"].strip())
    assert text == events[-1].text


async def test_streams_at_once(key, aio, expected):
    async def ask(clip: speech.Clip) -> str:
        stream = await aio.audio.transcriptions.create(file=clip.path, model=key, stream=True)
        return "".join([event.delta async for event in stream if event.type == "transcript.text.delta"])

    found = await asyncio.gather(*map(ask, speech.clips()[:3]))
    assert found == [one["text"].strip() for one in expected[:3]]


def written(result: dict, fmt: str, folder) -> str:
    """The reference's own file of a transcript; segments without words in it, as the API's cues are segments."""
    plain = {**result, "segments": [{k: v for k, v in s.items() if k != "words"} for s in result["segments"]]}
    get_writer(fmt, str(folder))(plain, "clip")
    return (folder / f"clip.{fmt}").read_text()


def hours(text: str) -> str:
    """The reference leaves the hours of WebVTT out where they are 0."""
    lines = text.splitlines()
    return "\n".join(" --> ".join(f"00:{t}" for t in x.split(" --> ")) if " --> " in x else x for x in lines)


def test_plain_formats(key, sdk, expected, tmp_path):
    found = {
        fmt: sdk.audio.transcriptions.create(
            file=speech.clips()[0].path, model=key, response_format=fmt, extra_body={"word_timestamps": True}
        )
        for fmt in ("json", "text", "srt", "vtt")
    }
    text = expected[0]["text"].strip()
    assert (found["json"].text, found["text"]) == (text, text + "\n")
    assert found["srt"].strip() == written(expected[0], "srt", tmp_path).strip()
    assert found["vtt"].strip() == hours(written(expected[0], "vtt", tmp_path)).strip()


def test_the_command_line_writes_subtitles(key, url, expected, tmp_path):
    words = ["--set", "word_timestamps=true"]
    command = [sys.executable, "-m", "toolkit.cli.main", "transcribe", str(speech.clips()[0].path)]
    options = ["--format", "srt", "--model", key, "--url", url, *words]
    found = subprocess.run([*command, *options], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.strip() == written(expected[0], "srt", tmp_path).strip()
