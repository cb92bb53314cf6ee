"""Kokoro's speech read back by Whisper tiny.en: what is said is what was written, whatever the voice and the load."""

import asyncio

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
    "The museum opens at half past nine and closes at six every day but Monday.",
    "On the 4th of July, 1998, more than 300 people came to the harbour.",
    "Mrs. Green paid $12.50 for the tickets and got $7.50 back.",
    "Did you read the book that she read last winter?",
    "They refuse to collect the refuse on public holidays.",
    "Mr. Alvarez and Dr. Jenkins met in Boston, then flew to Chicago together.",
    "The temperature fell to 5 degrees, so the lake began to freeze.",
    "When the lights went out, nobody moved, because everyone thought that it was part of the show, and it took"
    " several minutes until somebody laughed and opened the door.",
)
VOICES = ("af_heart", "am_michael", "bf_emma", "af_bella")


@pytest.fixture(scope="module")
def normalise():
    pytest.importorskip("whisper", reason="the extra `reference`")
    return whisper_normaliser()


class Loop:
    """One engine that speaks and listens."""

    def __init__(self):
        self.engine = Engine([registry.load(KEY, Options(rows=8)), registry.load(LISTENER, Options(rows=8))])

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

    async def hear(self, samples, rate=24_000):
        audio = Audio(samples[None], rate)
        heard = await self.outputs(LISTENER, "transcribe", {"audio": audio}, temperature=0.0)
        return " ".join(s.text.strip() for output in heard if output.port == "segments" for s in output.value)

    async def through(self, text, voice):
        return await self.hear(await self.speak(text, voice))


def jobs():
    """Every sentence by af_heart, and two by each of the others, so that each voice and each sentence has its turn."""
    others = [(SENTENCES[(2 * i + j) % len(SENTENCES)], voice) for i, voice in enumerate(VOICES[1:]) for j in range(2)]
    return [(text, VOICES[0]) for text in SENTENCES] + others


async def test_kokoro_is_understood_by_whisper(normalise, parity_record):
    parity_record.keys.append(KEY)
    async with Loop() as loop:
        heard = [await loop.through(text, voice) for text, voice in jobs()]
    found = word_error_rate([text for text, _ in jobs()], heard, normalise)
    low, high = found.interval()
    shown = "\n".join(f"{voice}: {text}\n    -> {said}" for (text, voice), said in zip(jobs(), heard, strict=True))
    print(f"{shown}\nWER {found.rate:.4f} [{low:.4f}, {high:.4f}] over {found.length} words")
    assert found.rate <= MOST, shown


async def test_kokoro_eight_at_once_say_the_same_as_alone():
    texts = ("Good morning.", "Did you read the book?")
    async with Loop() as loop:
        alone = [await loop.speak(text, "af_heart") for text in texts]
        together = await asyncio.gather(*(loop.speak(text, "af_heart") for text in texts * 4))
    for mine, theirs in zip(together, alone * 4, strict=True):
        np.testing.assert_array_equal(mine, theirs)


async def test_kokoro_silence_is_caught(normalise):
    """The control: sound that says nothing, and words of another sentence, are errors."""
    async with Loop() as loop:
        nothing = await loop.hear(np.zeros(48_000, np.float32))
    assert word_error_rate(SENTENCES[:1], [nothing], normalise).rate > MOST
    assert word_error_rate(SENTENCES[:1], SENTENCES[1:2], normalise).rate > MOST
