"""An engine whose outputs, delays and failures are scripted: the subject here is the surface, not the core."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import httpx
import uvicorn
from pydantic import BaseModel, ConfigDict, Field

from serving.api import build_app
from serving.core.contract import Card, LoadedModel, Options, Packed, Segment, Task, Word
from serving.errors import Cancelled
from serving.settings import ServerSettings


@dataclass(frozen=True)
class Out:
    port: str
    value: Any


@dataclass(frozen=True)
class Sleep:
    seconds: float


Script = Sequence[Any]  # of Out, Sleep, or an exception to raise


@dataclass
class FakeHandle:
    engine: FakeEngine
    request_id: str
    task: Task
    script: Script
    seed: int | None
    step: int = 0
    open: bool = True
    appended: list[tuple[str, Packed]] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc):
        if self.open:
            self.cancel()

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self.open:
            raise Cancelled("cancelled")
        while self.step < len(self.script):
            item = self.script[self.step]
            self.step += 1
            if isinstance(item, Sleep):
                await asyncio.sleep(item.seconds)
            elif isinstance(item, BaseException):
                self._end()
                raise item
            else:
                return item
        self._end()
        raise StopAsyncIteration

    async def append(self, port, packed):
        self.appended.append((port, packed))

    async def finish(self, port):
        self.finished.append(port)

    def cancel(self):
        if self.open:
            self.engine.cancelled.append(self.request_id)
            self._end()

    def _end(self):
        self.open = False
        self.engine.running.pop(self.request_id, None)


class FakeEngine:
    """`script(task)` gives what a request does; everything submitted is kept for the tests to look at."""

    def __init__(self, script: Callable[[Task], Script] = lambda task: ()) -> None:
        self.script = script
        self.state, self.reason = "starting", None
        self.submitted: list[FakeHandle] = []
        self.running: dict[str, FakeHandle] = {}
        self.cancelled: list[str] = []
        self.refusal: BaseException | None = None
        self.start_seconds = 0.0
        self.stopped = False
        self.traces: list[Any] = []

    async def submit(self, key, task, *, request_id, seed=None, session=None, live=False):
        if self.refusal:
            raise self.refusal
        handle = FakeHandle(self, request_id, task, self.script(task), seed)
        self.submitted.append(handle)
        self.running[request_id] = handle
        return handle

    def stats(self):
        return {
            "state": self.state,
            "running": len(self.running),
            "waiting": {"ears": 3},
            "free_slots": {"ears": 1},
            "steps": {"ears.decoder": 5},
            "misses": {"ears.decoder": 2},
        }

    async def start(self):
        await asyncio.sleep(self.start_seconds)
        self.state = "ready"

    async def stop(self, drain_seconds):
        self.state, self.stopped = "dead", True


class Knobs(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SpeechToText(Knobs):
    language: str | None = None
    prompt: str | None = None
    temperature: float = Field(0.0, ge=0, le=1)
    task: Literal["transcribe", "translate"] = "transcribe"
    timestamp_granularities: tuple[Literal["word", "segment"], ...] = ("segment",)
    beam_size: int = Field(1, ge=1, le=8)


class TextOnly(Knobs):
    """A speech-to-text model without any choice."""


class Speaking(Knobs):
    TAKES: ClassVar = ("text", "voice")

    voice: Literal["low", "high"] = "low"
    speed: float = Field(1.0, ge=0.5, le=2.0)


class Talking(Knobs):
    TAKES: ClassVar = ("text", "image", "audio", "video")

    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int = Field(256, ge=1, le=1000)
    stop: str | tuple[str, ...] | None = None
    modalities: tuple[str, ...] = ("text",)
    voice: Literal["low", "high"] = "low"
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str | None = None
    return_token_ids: bool = False


class Painting(Knobs):
    TAKES: ClassVar = ("text", "images", "mask")

    width: int = Field(16, ge=8, le=64, multiple_of=8)
    height: int = Field(16, ge=8, le=64, multiple_of=8)
    steps: int = Field(4, ge=1, le=50)


class Filming(Knobs):
    TAKES: ClassVar = ("text", "images")

    size: Literal["16x16", "32x16"] = "16x16"
    num_frames: int = Field(5, ge=1, le=33)
    fps: float = Field(8.0, gt=0, le=60)


class Acting(Knobs):
    TAKES: ClassVar = ("text", "audio", "images")

    gain: float = Field(1.0, gt=0, le=10)


class Voices:
    """The part of a port that the surface asks for voices."""

    def voices(self):
        return ["low", "high"]


CARDS = {
    "mouth": Card("mouth", "fake", "Speaks", {"speak": Speaking}, "MIT", "recipe", sample_rate=24_000),
    "talker": Card("talker", "fake", "Chats", {"chat": Talking}, "MIT", "recipe", sample_rate=24_000),
    "reader": Card("reader", "fake", "Chats in text", {"chat": TextOnly}, "MIT", "recipe"),
    "painter": Card("painter", "fake", "Paints", {"image": Painting}, "MIT", "recipe"),
    "sketcher": Card("sketcher", "fake", "Paints from text", {"image": TextOnly}, "MIT", "recipe"),
    "filmer": Card("filmer", "fake", "Films", {"video": Filming}, "MIT", "recipe"),
    "actor": Card("actor", "fake", "Acts", {"generate": Acting}, "MIT", "recipe"),
    "thinker": Card("thinker", "fake", "Acts on text", {"generate": TextOnly}, "MIT", "recipe"),
    "mute": Card("mute", "fake", "Speaks with one voice", {"speak": TextOnly}, "MIT", "recipe", sample_rate=44_100),
    "ears": Card("ears", "fake", "Hears", {"transcribe": SpeechToText}, "Apache-2.0", "recipe"),
    "plain": Card("plain", "fake", "Hears, has no knobs", {"transcribe": TextOnly}, "Apache-2.0", "recipe"),
    "deaf": Card("deaf", "fake", "Serves another task", {"other": TextOnly}, "Apache-2.0", "recipe"),
}
SEGMENTS = (
    Segment(
        0.0,
        1.5,
        " Hello there.",
        (1, 2),
        words=(Word(0.0, 0.6, " Hello", 0.9), Word(0.7, 1.4, " there.", 0.8)),
    ),
    Segment(1.5, 3661.25, " How are you? ", (3,), words=(Word(1.5, 1.8, " How", 0.7),)),
)
TEXT = "Hello there. How are you?"


def answer(task: Task) -> Script:
    """Two segments, one at a time, then the facts."""
    outputs = [Out("segments", [segment]) for segment in SEGMENTS]
    return [*outputs, Out("info", {"language": "english", "duration": 2.0})]


def loaded(*keys: str) -> list[LoadedModel]:
    models = {"mouth": Voices()}
    return [LoadedModel(CARDS[key], Options(rows=2), models.get(key)) for key in keys]  # type: ignore[arg-type]


def make_app(engine: FakeEngine | None = None, keys: Sequence[str] = ("ears", "plain", "deaf"), **settings: Any):
    engine = engine or FakeEngine(answer)
    return build_app(loaded(*keys), ServerSettings(**settings), engine, tuple(CARDS.values())), engine


@contextlib.asynccontextmanager
async def client(app, **options: Any):
    """An httpx client in this loop, inside the application's lifespan, the engine started."""
    async with app.router.lifespan_context(app):
        await app.state.starting
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", **options) as made:
            yield made


@contextlib.contextmanager
def live(app) -> Iterator[str]:
    """The application behind a real uvicorn in a thread; its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for(lambda: server.started, 60)
    wait_for(lambda: app.state.api.engine.state != "starting", 60)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Return once the condition holds; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)
