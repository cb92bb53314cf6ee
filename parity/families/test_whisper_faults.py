"""Planted faults, seen over HTTP: an answer that is openai-whisper's while the port is whole is not while it is broken.

The application runs in this process, so that it can be broken. What decides where windows start and what they are
told is compared with both sides reading attempts from one script, in which what is said depends on the prompt; what
finds words is compared with random weights.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from unittest import mock

import httpx
import numpy as np
import pytest
import soundfile
import torch

from models import registry
from models.whisper import graph, segments, transcribe
from models.whisper.request import TranscribeKnobs
from models.whisper.tests import reference
from models.whisper.tests.running import clip
from models.whisper.tests.test_graph import ONCE, theirs
from models.whisper.tests.test_transcribe import FRAMES, Heard, Script, replaced
from models.whisper.tests.test_transcribe import theirs as scripted_reference
from serving.api import build_app
from serving.core.contract import Options
from serving.core.engine import Engine
from serving.settings import ServerSettings

KEY = "whisper"
FIELDS = ("start", "end", "text", "tokens", "temperature")
pytestmark = pytest.mark.parametrize("key", [KEY])


@pytest.fixture(scope="module")
def tiny():
    return reference.model(True)


@pytest.fixture(scope="module")
def loaded(tiny, tmp_path_factory):
    folder = reference.save(tiny, tmp_path_factory.mktemp("checkpoint"))
    return registry.load(KEY, Options(weights=str(folder), rows=2))


@asynccontextmanager
async def client(loaded) -> AsyncIterator[httpx.AsyncClient]:
    app = build_app([loaded], ServerSettings(), Engine([loaded]), (loaded.card,))
    async with app.router.lifespan_context(app):
        await app.state.starting
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as made:
            yield made


async def heard(http: httpx.AsyncClient, samples: np.ndarray, **knobs) -> dict:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, 16_000, "PCM_16", format="WAV")
    form = {name: value if isinstance(value, str) else json.dumps(value) for name, value in knobs.items()}
    form |= {"model": KEY, "response_format": "verbose_json"}
    response = await http.post("/v1/audio/transcriptions", files={"file": ("a.wav", buffer.getvalue())}, data=form)
    assert response.status_code == 200, response.text
    return response.json()


class Telling(Script):
    """A script in which the first word of an attempt tells how much the decoder was told."""

    def answer(self, mel, prompt, temperature):
        found = super().answer(mel, prompt, temperature)
        found.values["id"][1] = 300 + len(prompt)
        return found


def attempts(stamp: int) -> list:
    """Two segments and an open one; a rejected window that is accepted warm; speech after it; closed to the end."""
    return [
        ([stamp, 1849, 257, stamp + 300, stamp + 300, 290, stamp + 700, stamp + 700, 318], -0.2, 0.1),
        ([stamp, *[220, 257] * 40, stamp + 500], -0.3, 0.1),
        ([stamp + 10, 340, 1849, stamp + 400], -0.3, 0.1),
        ([stamp, 1849, stamp + 200, stamp + 200, 12, stamp + 900], -0.4, 0.1),
    ]


def decode_from(script: Script):
    """Stands for the decoder: what the script says next."""

    def decode(job, window, context, temperature, width):
        mel = job.heard(window, width).values["mel"][0]
        found = script.answer(mel, transcribe.prompt_of(job, context)[0], temperature)
        return transcribe.read(found, temperature, job.tokenizer)
        yield

    return decode


def wrong_seek(window, tokens, tokenizer):
    found = segments.cut(window, tokens, tokenizer)
    return replace(found, seek=found.seek + 2)


def stamps_off_by_one(window, tokens, tokenizer):
    return segments.cut(window, [t + (t >= tokenizer.timestamps) for t in tokens], tokenizer)


FAULTS = {
    "none": {"cut": segments.cut},
    "wrong seek": {"cut": wrong_seek},
    "off-by-one timestamp token": {"cut": stamps_off_by_one},
    "prompt leaks over a rejected window": {"_context": lambda job, story: story.tokens},
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_in_the_windowing_is_seen(key, loaded, fault):
    port, mel = loaded.model, torch.randn(80, 7000 + FRAMES, generator=torch.Generator().manual_seed(3))
    script = attempts(port.tokenizer.timestamps)
    knobs = TranscribeKnobs(language="en", fallback_temperatures=(0.6,), prompt="some words")
    with (
        replaced(mel),
        mock.patch.object(graph, "Sound", return_value=Heard(mel)),
        mock.patch.object(transcribe, "_decode", decode_from(Telling(port, script))),
        mock.patch.multiple(transcribe, **FAULTS[fault]),
    ):
        expected = scripted_reference(port, Telling(port, script), mel, knobs)
        async with client(loaded) as http:
            given = {"language": "en", "fallback_temperatures": [0.6], "prompt": "some words"}
            found = (await heard(http, np.zeros(16_000), **given))["segments"]
    ours, reference = ([[one[name] for name in FIELDS] for one in side] for side in (found, expected))
    if fault == "none":
        assert ours == reference
    else:
        assert ours != reference


async def test_swapped_alignment_heads_are_seen(key, loaded, tiny):
    audio, aligner = clip(3, seed=1), loaded.model.graph.nodes["aligner"]
    knobs = {"language": "en", "without_timestamps": True}
    expected = [
        (word["word"].strip(), word["start"])
        for segment in theirs(tiny, audio, word_timestamps=True, **knobs)["segments"]
        for word in segment["words"]
    ]
    gates = {name: value for name, value in ONCE.items() if name == "fallback_temperatures"}
    gates |= {"compression_ratio_threshold": 1e9, "logprob_threshold": -1e9, "no_speech_threshold": 1.0}
    async with client(loaded) as http:

        async def starts() -> list[tuple[str, float]]:
            ask = {**knobs, **gates, "timestamp_granularities[]": "word"}
            return [(word["word"], word["start"]) for word in (await heard(http, audio.samples[0], **ask))["words"]]

        assert [word for word, _ in await starts()] == [word for word, _ in expected]
        assert [at for _, at in await starts()] == pytest.approx([at for _, at in expected], abs=0.021)
        with mock.patch.object(aligner, "heads", {0: [1, 0]}):
            moved = await starts()
    assert [round(at, 2) for _, at in moved][: len(expected)] != [round(at, 2) for _, at in expected]
