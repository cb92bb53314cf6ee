"""Kokoro's speech read back by Whisper tiny.en: what is said is what was written, whatever the voice and the load.

Every run says one sentence in each of four voices, in eight requests at once. Nightly: every sentence, every voice,
rows batched, and the words of a stream over HTTP.
"""

import asyncio
from functools import cache

import httpx
import numpy as np
import pytest

from models import registry
from parity.harness.text import whisper_normaliser, word_error_rate
from parity.invariants.kit import numbers
from serving.core.contract import Audio, Options, Task
from serving.core.engine import Engine

KEY, LISTENER = "kokoro", "whisper_tiny_en"
MOST = 0.05
SENTENCES = (
    "They refuse to collect the refuse on public holidays.",
    "Mrs. Green paid $12.50 for the tickets and got $7.50 back.",
    "Did you read the book that she read last winter?",
    "The temperature fell to 5 degrees, so the lake began to freeze.",
    "The museum opens at half past nine and closes at six every day but Monday.",
    "Mr. Alvarez and Dr. Jenkins met in Boston, then flew to Chicago together.",
    "On the 4th of July, 1998, more than 300 people came to the harbour.",
    "When the lights went out, nobody moved, because everyone thought that it was part of the show, and it took"
    " several minutes until somebody laughed and opened the door.",
)
VOICES = ("af_heart", "am_michael", "bf_emma", "af_bella")
EACH = tuple(zip(SENTENCES, VOICES, strict=False))
SHORT = (("Good morning.", "af_heart"), ("It is late.", "bf_emma"))
EIGHT = (*EACH, *SHORT, *SHORT)
ALL = tuple((text, voice) for voice in VOICES for text in SENTENCES)


@pytest.fixture(scope="module")
def normalise():
    pytest.importorskip("whisper", reason="the extra `reference`")
    return whisper_normaliser()


@cache
def speaker(batch_rows=None):
    """The port as it is served; on a CPU it takes one row a step unless it is told otherwise."""
    model = {} if batch_rows is None else {"batch_rows": batch_rows}
    return registry.load(KEY, Options(rows=8, profile="default", model=model))


@cache
def listener():
    return registry.load(LISTENER, Options(rows=8))


class Loop:
    """One engine that speaks and listens."""

    def __init__(self, *loaded):
        self.engine = Engine(loaded)

    async def __aenter__(self):
        await self.engine.start()
        return self

    async def __aexit__(self, *_):
        await self.engine.stop()

    async def outputs(self, key, kind, inputs, **knobs):
        task = Task(kind, inputs, registry.card(key).tasks[kind](**knobs))
        handle = await self.engine.submit(key, task, request_id=f"w{next(numbers)}", seed=1)
        return [output async for output in handle]

    async def speak(self, text, voice):
        spoken = await self.outputs(KEY, "speak", {"text": text}, voice=voice)
        return np.concatenate([output.value for output in spoken if output.port == "audio"])

    async def together(self, jobs):
        """Audio of each job, eight at once."""
        room = asyncio.Semaphore(8)

        async def one(job):
            async with room:
                return await self.speak(*job)

        return await asyncio.gather(*map(one, jobs))

    async def hear(self, samples, rate=24_000):
        audio = Audio(samples[None], rate)
        heard = await self.outputs(LISTENER, "transcribe", {"audio": audio}, temperature=0.0)
        return " ".join(s.text.strip() for output in heard if output.port == "segments" for s in output.value)


def understood(jobs, heard, normalise):
    """The corpus' error rate, which must be small; what was said and heard is shown."""
    found = word_error_rate([text for text, _ in jobs], heard, normalise)
    low, high = found.interval()
    shown = "\n".join(f"{voice}: {text}\n    -> {said}" for (text, voice), said in zip(jobs, heard, strict=True))
    print(f"{shown}\nWER {found.rate:.4f} [{low:.4f}, {high:.4f}] over {found.length} words")
    assert found.rate <= MOST, shown


async def test_kokoro_is_understood_alone_and_among_eight(normalise, parity_record):
    """The sound among eight is the sound alone, bit for bit, and its words are those that were written."""
    parity_record.keys.append(KEY)
    async with Loop(speaker(), listener()) as loop:
        alone = [await loop.speak(*job) for job in SHORT]
        spoken = await loop.together(EIGHT)
        for ours, theirs in zip(spoken[len(EACH) :], alone * 2, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        understood(EACH, [await loop.hear(audio) for audio in spoken[: len(EACH)]], normalise)


async def test_kokoro_silence_is_caught(normalise):
    """The control: sound that says nothing, and words of another sentence, are errors."""
    async with Loop(listener()) as loop:
        nothing = await loop.hear(np.zeros(48_000, np.float32))
    assert word_error_rate(SENTENCES[:1], [nothing], normalise).rate > MOST
    assert word_error_rate(SENTENCES[:1], SENTENCES[1:2], normalise).rate > MOST


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [1, 4])
async def test_kokoro_is_understood_in_every_voice_eight_at_once(normalise, rows):
    """Rows alone in their step, and up to four in one."""
    async with Loop(speaker(rows), listener()) as loop:
        spoken = await loop.together(ALL)
        understood(ALL, [await loop.hear(audio) for audio in spoken], normalise)


@pytest.mark.nightly
async def test_kokoro_streamed_is_understood(normalise, served):
    url = served(KEY)
    heard = []
    async with Loop(listener()) as loop:
        for text, voice in EACH:
            body = {"model": KEY, "input": text, "voice": voice, "response_format": "pcm", "stream": True}
            said = httpx.post(f"{url}/v1/audio/speech", json=body, timeout=300)
            heard.append(await loop.hear(np.frombuffer(said.content, "<i2").astype(np.float32) / 32768))
    understood(EACH, heard, normalise)
