"""From the engine thread to a client's event loop and back: one call a step carries every client's items."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from serving.core.buffer import cut
from serving.core.contract import Model, Packed
from serving.errors import Cancelled, ToolkitError

if TYPE_CHECKING:
    from serving.core.engine import Engine
    from serving.core.request import Request


@dataclass(frozen=True, slots=True)
class Output:
    """Items that reached the client: `value` is what the model's `present` made of them."""

    port: str
    value: Any


@dataclass(frozen=True, slots=True)
class End:
    """The last event of a request."""

    error: ToolkitError | None = None


LIGHT = 1 << 16  # bytes of items that are presented on the event loop: to go to a thread and back costs more
Event = tuple[str, Any, int] | End


def _size(values: Any) -> int:
    """Bytes of arrays; what is no array is small."""
    if isinstance(values, dict):
        return sum(map(_size, values.values()))
    return int(getattr(values, "nbytes", 0))


class Handle:
    """A request as its client sees it: iterate for outputs, append to client streams, cancel."""

    def __init__(self, engine: Engine, request_id: str, model: Model, pool: Executor, *, paced: bool) -> None:
        self._paced = paced  # the engine waits for the client to take what it has
        self.id = request_id
        self.loop = asyncio.get_running_loop()
        self._engine = engine
        self._model = model
        self._pool = pool
        self._events: deque[Event] = deque()
        self._arrived = asyncio.Event()
        self._ready: deque[Output] = deque()
        self._end: End | None = None

    def push(self, events: list[Event]) -> None:
        """On the event loop: what the engine handed over after a step."""
        self._events.extend(events)
        self._arrived.set()

    def cancel(self) -> None:
        """Stop the request. Idempotent; a finished request is left alone."""
        if self._end is None:
            self._engine.cancel(self.id)

    async def append(self, name: str, items: Packed) -> None:
        """Add items to a client stream; refused when its edge's limit is passed."""
        await self._engine.ask(lambda: self._engine.append(self.id, name, items))

    async def finish(self, name: str) -> None:
        """Close a client stream."""
        await self._engine.ask(lambda: self._engine.append(self.id, name, None))

    async def __aenter__(self) -> Handle:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        while not self._ready:
            if self._end is not None:
                if self._end.error is not None:
                    raise self._end.error
                raise StopAsyncIteration
            await self._refill()
        return self._ready.popleft()

    async def _refill(self) -> None:
        while not self._events:
            self._arrived.clear()
            await self._arrived.wait()
        items: list[tuple[str, Any, int]] = []
        while self._events:
            event = self._events.popleft()
            if isinstance(event, End):
                self._end = event
                break
            items.append(event)
        if items:
            if sum(_size(values) for _, values, _ in items) <= LIGHT:
                self._ready.extend(self._present(items))
            else:
                self._ready.extend(await self.loop.run_in_executor(self._pool, self._present, items))
            if self._paced:
                self._engine.consumed(self.id, sum(count for _, _, count in items))

    def _present(self, items: list[tuple[str, Any, int]]) -> list[Output]:
        return [
            Output(port, self._model.present(port, Packed(values, np.array([count])))) for port, values, count in items
        ]


@dataclass(frozen=True, slots=True)
class Own:
    """Events of one request."""

    handle: Handle
    events: list[Event]

    def open(self) -> None:
        self.handle.push(self.events)


@dataclass(frozen=True, slots=True)
class Shared:
    """Items of a step, row i for handle i: cut on the client's loop, not on the engine's thread."""

    handles: list[Handle]
    port: str
    items: Packed

    def open(self) -> None:
        start, values = 0, self.items.values
        for handle, count in zip(self.handles, self.items.lengths.tolist(), strict=True):
            if count:
                handle.push([(self.port, cut(values, start, start + count), count)])
            start += count


class Mailbox:
    """What one event loop has still to open. A loop that was called and has not come yet finds later parcels too."""

    __slots__ = ("called", "parcels")

    def __init__(self) -> None:
        self.parcels: deque[Own | Shared] = deque()
        self.called = False

    def open(self) -> None:
        """On the event loop. Whoever adds a parcel after the loop was last seen empty finds `called` unset."""
        self.called = False
        for _ in range(len(self.parcels)):
            self.parcels.popleft().open()


class Outbox:
    """What the engine hands over, in order; `flush` makes at most one call an event loop, and none to a busy one."""

    def __init__(self) -> None:
        self._waiting: list[Request] = []
        self._boxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}

    def add(self, request: Request, event: Event) -> None:
        if not request.events:
            self._waiting.append(request)
        request.events.append(event)

    def share(self, loop: asyncio.AbstractEventLoop, handles: list[Handle], port: str, items: Packed) -> None:
        """Items of many clients, after all that was added before."""
        self._seal()
        self._box(loop).parcels.append(Shared(handles, port, items))

    def _seal(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            handle = request.handle
            self._box(handle.loop).parcels.append(Own(handle, request.events))
            request.events = []

    def _box(self, loop: asyncio.AbstractEventLoop) -> Mailbox:
        box = self._boxes.get(loop)
        if box is None:
            box = self._boxes[loop] = Mailbox()
        return box

    def flush(self) -> None:
        self._seal()
        for loop, box in list(self._boxes.items()):
            if loop.is_closed():
                del self._boxes[loop]
            elif box.parcels and not box.called:
                box.called = True
                call(loop, box.open)


def call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    """`call_soon_threadsafe`, or nothing when the client's loop has closed: nobody is left to tell."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, *args)


def cancelled() -> End:
    """The end of a request whose client left."""
    return End(Cancelled("The request was cancelled."))
