"""Kokoro's memory stays where it is however many lengths it has spoken."""

import json
import random
import subprocess
import sys

import pytest

KEY = "kokoro"
SETTLED, GROWTH = 100, 0.05  # utterances after which memory may not grow by more than this share
LETTERS = "bdfɡhkmnpstvwzæɛɪʌi"
SPEAKER = """
import asyncio, json, sys
from models import registry
from serving.core.contract import Options, Task
from serving.core.engine import Engine, EngineSettings

def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

async def main():
    settings = EngineSettings(lanes=2)
    engine = Engine([registry.load("kokoro", Options(profile="default"))], settings)
    await engine.start()
    knobs = registry.card("kokoro").tasks["speak"]
    waiting = iter(enumerate(json.load(sys.stdin)))

    async def speak():
        for i, (phonemes, speed) in waiting:
            task = Task("speak", {"text": ""}, knobs(phonemes=phonemes, speed=speed))
            async for _ in await engine.submit("kokoro", task, request_id=f"m{i}", seed=i):
                pass
            print(resident(), flush=True)

    await asyncio.gather(speak(), speak())
    await engine.stop()

asyncio.run(main())
"""


def utterances(count):
    """Phonemes of words, and a speed, of many lengths."""
    draw = random.Random(0)

    def word():
        return "".join(draw.choice(LETTERS) for _ in range(draw.randint(2, 6)))

    def utterance():
        return " ".join(word() for _ in range(draw.randint(1, 10))), draw.choice((3.5, 4.0))

    return [utterance() for _ in range(count)]


@pytest.mark.nightly
@pytest.mark.parametrize("key", [KEY])
def test_memory_is_flat_over_300_utterances_of_different_lengths(key):
    """Two at once on two lanes of a process; each line is its resident memory in KiB after one more utterance."""
    command = [sys.executable, "-c", SPEAKER]
    spoken = subprocess.run(command, input=json.dumps(utterances(300)), capture_output=True, text=True, check=True)
    held = [int(line) for line in spoken.stdout.split()]
    print(f"resident MiB after 1, {SETTLED} and 300: {held[0] >> 10}, {held[SETTLED - 1] >> 10}, {held[-1] >> 10}")
    assert max(held[SETTLED:]) <= (1 + GROWTH) * held[SETTLED - 1]
