"""What every invariant suite needs: keys, a task of each kind, and outputs as bytes that can be compared."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, is_dataclass

import numpy as np
import soundfile
import torch

from models import registry
from oracles.speech import clips
from serving.core.contract import Audio, Options, Task
from serving.core.engine import Engine

SENTENCES = ("Good morning.", "A light wind will blow from the west. Then the rain begins.", "Yes!")
PROFILES = {"kokoro": "default"}  # what is served, where it is as invariant as the exact profile and half the work
numbers = itertools.count()


def keys() -> list[str]:
    """Every key that is not experimental and whose weights are here."""
    return [key for key, card in registry.cards().items() if not card.experimental]


def tasks(key: str) -> list[Task]:
    """A few different tasks of every kind that the key serves, all with the key's default knobs."""
    card = registry.card(key)
    return [
        Task(kind, inputs, knobs())
        for kind, knobs in card.tasks.items()
        for inputs in INPUTS[kind]()
        if knobs is not None
    ]


def _heard() -> list[dict[str, Audio]]:
    found = []
    for clip in clips()[:3]:
        samples, rate = soundfile.read(clip.path, dtype="float32", always_2d=True)
        found.append({"audio": Audio(samples.T, rate)})
    return found


def _tones() -> list[dict[str, Audio]]:
    return [
        {"audio": Audio(np.random.default_rng(n).standard_normal((1, 8 * n)).astype(np.float32), 8000)} for n in (2, 5)
    ]


INPUTS = {
    "transcribe": _heard,
    "speak": lambda: [{"text": text} for text in SENTENCES],
    "image": lambda: [{"text": text} for text in ("a cat", "two boats on a lake")],
    "generate": _tones,
}


def flat(value: object) -> object:
    """A value whose equality is equality of bits."""
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if is_dataclass(value) and not isinstance(value, type):
        return flat(asdict(value))
    if isinstance(value, dict):
        return tuple((name, flat(item)) for name, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(flat(item) for item in value)
    return value


def joined(outputs: list) -> dict[str, object]:
    """Port -> everything that came out of it, whatever the chunks it came in."""
    ports: dict[str, list] = {}
    for output in outputs:
        ports.setdefault(output.port, []).append(output.value)
    return {
        port: flat(np.concatenate(values) if isinstance(values[0], np.ndarray) else values)
        for port, values in ports.items()
    }


@asynccontextmanager
async def engine(key: str, capture: str = "eager", rows: int = 8, **options):
    """An engine over one key in invariant numerics."""
    asked = {"numerics": "invariant", "profile": PROFILES.get(key, "exact"), **options}
    loaded = registry.load(key, Options(rows=rows, capture=capture, **asked))
    made = Engine([loaded])
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def run(made: Engine, key: str, task: Task, seed: int = 1) -> dict[str, object]:
    """One request to its end."""
    handle = await made.submit(key, task, request_id=f"i{next(numbers)}", seed=seed)
    return joined([output async for output in handle])


async def unsettled(made: Engine, key: str, tasks: list[Task]) -> list[dict[str, object]]:
    """All together, and every few steps whoever can has to leave the device and come back."""
    running = asyncio.create_task(together(made, key, tasks))
    while not running.done():
        for name in await made.ask(lambda: list(made._requests._all)):
            await made.ask(lambda name=name: made.preempt(name))
        await asyncio.sleep(0.03)
    return await running


async def alone(made: Engine, key: str, tasks: list[Task]) -> list[dict[str, object]]:
    return [await run(made, key, task) for task in tasks]


async def together(made: Engine, key: str, tasks: list[Task]) -> list[dict[str, object]]:
    return list(await asyncio.gather(*(run(made, key, task) for task in tasks)))
