"""Simulated time: an event loop that jumps to its next timer, and connections in memory."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from perf.client.http import Connection, Dial
from perf.fake_server import FakeServer

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Waits by moving the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits for something that will never happen")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def simulate(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `main` to its end without waiting for real time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


class Pipe(asyncio.Transport):
    """One direction's writing end; bytes arrive at the peer at once, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, near: Any) -> None:
        super().__init__()
        self._loop, self._near, self._closing = loop, near, False
        self.far: Any = None
        self.back: Pipe

    def write(self, data: Any) -> None:
        if not self._closing and not self.back._closing:
            self._loop.call_soon(self.far.data_received, bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        for end in (self, self.back):
            if not end._closing:
                end._closing = True
                self._loop.call_soon(end._near.connection_lost, None)

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


def dial_to(server: FakeServer) -> Dial:
    """A way for `Pool` to reach the server without a socket."""

    async def dial(factory: Callable[[], Connection]) -> tuple[asyncio.BaseTransport, Connection]:
        loop = asyncio.get_running_loop()
        client = factory()
        reader = asyncio.StreamReader(loop=loop)
        served = asyncio.StreamReaderProtocol(reader, server.handle, loop=loop)
        near, far = Pipe(loop, client), Pipe(loop, served)
        near.far, far.far, near.back, far.back = served, client, far, near
        served.connection_made(far)
        client.connection_made(near)
        return near, client

    return dial
