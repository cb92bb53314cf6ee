"""The port in an engine, and clips for it to hear."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from models.whisper import CARDS
from models.whisper.request import TranscribeKnobs
from serving.core.contract import Audio, LoadedModel, Options, Task
from serving.core.engine import Engine, EngineSettings


def clip(seconds: float, seed: int = 0, rate: int = 16_000, channels: int = 1) -> Audio:
    """Bursts of a gliding voice-like tone with pauses between them, in noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    pitch = 2 * np.pi * np.cumsum(110 + 30 * np.sin(2 * np.pi * 0.7 * t)) / rate
    voice = sum(np.sin(k * pitch) / k for k in range(1, 20))
    syllables = np.clip(np.sin(2 * np.pi * (2 + seed % 3) * t), 0, 1) * (np.sin(2 * np.pi * 0.2 * t) > -0.7)
    sound = 0.1 * voice * syllables + 0.003 * rng.standard_normal(len(t))
    return Audio(np.repeat(sound[None].astype(np.float32), channels, 0), rate)


async def outputs(engine: Engine, audio: Audio, request_id: str, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """{"segments": [...], "info": {...}} of one request."""
    task = Task("transcribe", {"audio": audio}, TranscribeKnobs(**knobs))
    found: dict[str, Any] = {"segments": [], "info": {}}
    async for output in await engine.submit(CARDS[0].key, task, request_id=request_id, seed=7):
        if output.port == "info":
            found["info"] |= output.value
        else:
            found["segments"] += output.value
    return found


def engine_of(port: Any, rows: int = 8, **settings: Any) -> Engine:
    return Engine([LoadedModel(CARDS[0], Options(rows=rows), port)], EngineSettings(**settings))


def transcribed(port: Any, clips: Sequence[Audio], rows: int = 8, **knobs: Any) -> list[dict[str, Any]]:
    """All clips at once through one engine, which must hold nothing afterwards."""

    async def run() -> list[dict[str, Any]]:
        engine = engine_of(port, rows)
        await engine.start()
        try:
            tasks = [outputs(engine, audio, f"clip-{i}", knobs) for i, audio in enumerate(clips)]
            found = await asyncio.gather(*tasks)
            await empty(engine)
            return found
        finally:
            await engine.stop()

    return asyncio.run(run())


async def empty(engine: Engine, seconds: float = 20.0) -> None:
    """Wait until the last step has come back; then every slot and page must be back too."""
    for _ in range(int(seconds / 0.01)):
        if not (left := held(engine)):
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"still held: {left}")


def held(engine: Engine) -> list[str]:
    """What is not back where it was before the first request."""
    left = [f"{engine.stats()['requests']} requests"] if engine.stats()["requests"] else []
    for model in engine.models.values():
        left += ["slots"] if len(model.free) < model.rows else []
        for label in ("cross_kv", "decoder_kv", "align_kv"):
            resource = model.graph.resources[label]
            left += [label] if resource.pages.free < resource.capacity else []
    return left


def tokens(found: Mapping[str, Any]) -> list[int]:
    return [token for segment in found["segments"] for token in segment.tokens]
