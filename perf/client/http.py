"""HTTP/1.1 over an asyncio protocol, for measuring.

A general client hands body pieces to a waiting task: that costs 0.2 ms a chunk, and the chunk's time is when
the task next ran. Here the time is taken when the socket is read, HTTP chunks stay whole, and a request costs
one future. Set-up calls that are not measured use httpx.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from perf.client.clock import Clock
from perf.schema import FailureKind

HEAD_LIMIT = 1 << 16


class RequestFailed(Exception):
    """A request that will have no complete answer, and why."""

    def __init__(self, kind: FailureKind, message: str = "", status: int | None = None) -> None:
        super().__init__(message)
        self.kind: FailureKind = kind
        self.message = message
        self.status = status


class Sink(Protocol):
    """Takes a response as it comes; what it raises ends the request."""

    def head(self, t: float, status: int, headers: Mapping[str, str]) -> None: ...

    def piece(self, t: float, data: bytes, complete: bool) -> None:
        """Part of the body; `complete` where an HTTP chunk, as the server wrote it, ends."""


class Parser:
    """Bytes of responses in, `head` and `piece` calls out. One instance a connection."""

    def __init__(self, head: Callable[[int, dict[str, str]], None], piece: Callable[[bytes, bool], None]) -> None:
        self._buffer = bytearray()
        self._on_head, self._on_piece = head, piece
        self._left = 0
        self.restart()

    def restart(self) -> None:
        """Expect a new response."""
        self._step: Callable[[], bool] = self._head
        self.finished = self.keep_alive = self.until_close = False

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while not self.finished and self._step():
            pass

    def _take(self, mark: bytes) -> bytes | None:
        """Up to `mark`, which is thrown away; None where it has not come yet."""
        stop = self._buffer.find(mark)
        if stop < 0:
            if len(self._buffer) > HEAD_LIMIT:
                raise RequestFailed("malformed", f"no end of a header within {HEAD_LIMIT} bytes")
            return None
        found = bytes(self._buffer[:stop])
        del self._buffer[: stop + len(mark)]
        return found

    def _head(self) -> bool:
        block = self._take(b"\r\n\r\n")
        if block is None:
            return False
        first, *lines = block.decode("latin-1").split("\r\n")
        status = _status(first)
        if status < 200:
            return True
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self.keep_alive = first.startswith("HTTP/1.1") and headers.get("connection", "").lower() != "close"
        self._on_head(status, headers)
        self._choose_body(status, headers)
        return True

    def _choose_body(self, status: int, headers: Mapping[str, str]) -> None:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            self._step = self._size
        elif "content-length" in headers:
            self._left = int(headers["content-length"])
            self._step = self._fixed
            self.finished = self._left == 0
        elif status in (204, 304):
            self.finished = True
        else:
            self.until_close, self.keep_alive = True, False
            self._step = self._rest

    def _pour(self) -> bool:
        """Pass on what is here of the part being read; whether that was all of it."""
        data = bytes(self._buffer[: self._left])
        del self._buffer[: self._left]
        self._left -= len(data)
        if data:
            self._on_piece(data, self._left == 0)
        return self._left == 0

    def _fixed(self) -> bool:
        self.finished = self._pour()
        return False

    def _rest(self) -> bool:
        self._left = len(self._buffer)
        self._pour()
        return False

    def _size(self) -> bool:
        line = self._take(b"\r\n")
        if line is None:
            return False
        try:
            self._left = int(line.split(b";")[0], 16)
        except ValueError:
            raise RequestFailed("malformed", f"chunk size {line[:20]!r}") from None
        self._step = self._chunk if self._left else self._trailer
        return True

    def _chunk(self) -> bool:
        if not self._pour():
            return False
        self._step = self._chunk_end
        return True

    def _chunk_end(self) -> bool:
        if self._take(b"\r\n") is None:
            return False
        self._step = self._size
        return True

    def _trailer(self) -> bool:
        line = self._take(b"\r\n")
        self.finished = line == b""
        return bool(line)


def _status(line: str) -> int:
    parts = line.split(" ", 2)
    if len(parts) < 2 or not parts[0].startswith("HTTP/") or not parts[1].isdigit():
        raise RequestFailed("malformed", f"status line {line[:40]!r}")
    return int(parts[1])


class Connection(asyncio.Protocol):
    """One exchange at a time on one socket."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sink: Sink | None = None
        self._done: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self._now = 0.0
        self._parser = Parser(self._head, self._piece)
        self.heard = False
        self.closed = False

    @property
    def reusable(self) -> bool:
        return self._parser.keep_alive and not self.closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def exchange(self, request: bytes, sink: Sink) -> None:
        """Send, and return when the response is complete. Raises `RequestFailed`."""
        assert self._transport is not None
        self._sink, self.heard = sink, False
        self._parser.restart()
        self._done = self._clock.loop.create_future()
        self._transport.write(request)
        await self._done

    def data_received(self, data: bytes) -> None:
        self._now, self.heard = self._clock(), True
        try:
            self._parser.feed(data)
        except RequestFailed as failed:
            self._fail(failed)
        else:
            if self._parser.finished:
                self._succeed()

    def _head(self, status: int, headers: dict[str, str]) -> None:
        if self._sink:
            self._sink.head(self._now, status, headers)

    def _piece(self, data: bytes, complete: bool) -> None:
        if self._sink:
            self._sink.piece(self._now, data, complete)

    def _succeed(self) -> None:
        if self._done and not self._done.done():
            self._done.set_result(None)

    def _fail(self, failed: RequestFailed) -> None:
        if self._done and not self._done.done():
            self._done.set_exception(failed)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._parser.until_close and exc is None:
            self._succeed()
        else:
            self._fail(RequestFailed("disconnected", str(exc or "the server closed the connection")))

    def close(self) -> None:
        self.closed, self._sink = True, None
        if self._transport:
            self._transport.abort()


Dial = Callable[[Callable[[], Any]], Awaitable[tuple[asyncio.BaseTransport, Any]]]


class Pool:
    """Connections to one server: as many as there are requests in flight, kept for the next ones."""

    def __init__(self, clock: Clock, dial: Dial) -> None:
        self._clock, self._dial = clock, dial
        self._idle: list[Connection] = []

    async def send(self, request: bytes, sink: Sink) -> None:
        """One exchange. A kept connection found closed before any byte came is replaced once."""
        kept = self._kept()
        if kept is not None:
            try:
                return await self._use(kept, request, sink)
            except RequestFailed as failed:
                if kept.heard or failed.kind != "disconnected":
                    raise
        await self._use(await self._open(), request, sink)

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    async def _open(self) -> Connection:
        try:
            _, connection = await self._dial(lambda: Connection(self._clock))
        except OSError as error:
            raise RequestFailed("refused", str(error)) from error
        return connection

    async def _use(self, connection: Connection, request: bytes, sink: Sink) -> None:
        try:
            await connection.exchange(request, sink)
        finally:
            # Also on cancellation: a request that is given up must not leave the server working for it.
            if connection.reusable and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()
