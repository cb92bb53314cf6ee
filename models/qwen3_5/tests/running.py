"""The port in an engine, asked as the API asks it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from models.qwen3_5.graph import Qwen35Port
from models.qwen3_5.request import QwenChatKnobs
from models.qwen3_5.tests.tiny import CARD
from serving.core.contract import LoadedModel, Options, Task, TokenLogprob, ToolCall
from serving.core.engine import Engine, EngineSettings

Messages = Sequence[Mapping[str, Any]]


@dataclass(slots=True)
class Answer:
    """What came out of one request."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)


def user(text: str) -> Messages:
    return [{"role": "user", "content": text}]


def engine_of(port: Qwen35Port, rows: int = 8, numerics: str = "fast", **options: Any) -> Engine:
    return Engine([LoadedModel(CARD, Options(rows=rows, numerics=numerics, **options), port)], EngineSettings())


async def answer(engine: Engine, messages: Messages, request_id: str, **knobs: Any) -> Answer:
    """One request to its end; greedy and for ever unless `knobs` say otherwise."""
    fields = {"temperature": 0, "return_token_ids": True, "ignore_eos": True, "max_tokens": 16, **knobs}
    task, found = Task("chat", {"messages": messages}, QwenChatKnobs(**fields)), Answer()
    async for output in await engine.submit(CARD.key, task, request_id=request_id, seed=7):
        if output.port == "info":
            found.info |= output.value
            continue
        found.ids += output.value.token_ids
        found.text += output.value.text
        found.reasoning += output.value.reasoning
        found.calls += output.value.tool_calls
        found.logprobs += output.value.logprobs
    return found


def answered(
    port: Qwen35Port, conversations: Sequence[Messages], *, rows: int = 8, numerics: str = "fast", **knobs: Any
) -> list[Answer]:
    """All conversations at once through one engine, which must hold nothing afterwards."""

    async def run() -> list[Answer]:
        engine = engine_of(port, rows, numerics)
        await engine.start()
        try:
            asked = [answer(engine, one, f"chat-{i}", **knobs) for i, one in enumerate(conversations)]
            found = await asyncio.gather(*asked)
            await empty(engine)
            return list(found)
        finally:
            await engine.stop()

    return asyncio.run(run())


async def empty(engine: Engine, seconds: float = 20.0) -> None:
    """Wait until the last step has come back; then every slot and page must be back, or kept for a later prompt."""
    for _ in range(int(seconds / 0.01)):
        left = held(engine)
        if not left:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"still held: {left}")


def held(engine: Engine) -> list[str]:
    """What is not back where it was before the first request."""
    left = [f"{engine.stats()['requests']} requests"] if engine.stats()["requests"] else []
    for model in engine.models.values():
        kv, state = model.graph.resources["kv"], model.graph.resources["state"]
        left += ["slots"] if len(model.free) < model.rows else []
        left += ["pages"] if kv.pages.free + len(kv.cache) < kv.capacity else []
        left += ["state"] if state.free < state.capacity else []
    return left
