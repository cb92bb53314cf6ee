"""A WebSocket of JSON messages over an asyncio protocol: each is given with the time at which its bytes were read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from perf.client.clock import Clock
from perf.client.http import RequestFailed
from perf.client.readers import document

Take = Callable[[float, dict[str, Any]], None]


class Socket(asyncio.Protocol):
    """A connection to `url` (ws or wss). `take` gets every message; what it raises ends the conversation."""

    def __init__(self, clock: Clock, url: str, headers: Mapping[str, str], take: Take) -> None:
        self._clock, self._take, self._headers = clock, take, headers
        self._protocol = ClientProtocol(parse_uri(url), max_size=None)
        self._opened: asyncio.Future[None] = clock.loop.create_future()
        self._over: asyncio.Future[None] = clock.loop.create_future()
        self._text = bytearray()
        self._transport: asyncio.Transport | None = None

    async def opened(self) -> None:
        """The server has taken the connection. Raises `RequestFailed`."""
        await asyncio.wait({self._opened, self._over}, return_when=asyncio.FIRST_COMPLETED)
        if self._over.done():
            self._over.result()

    async def over(self) -> None:
        """`finish` was called. Raises `RequestFailed`."""
        await asyncio.shield(self._over)

    def finish(self) -> None:
        """The conversation is complete."""
        if not self._over.done():
            self._over.set_result(None)

    def send(self, message: Mapping[str, Any]) -> None:
        """Write a message now; nothing once the connection is over."""
        if not self._over.done():
            self._protocol.send_text(json.dumps(message).encode())
            self._flush()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        request = self._protocol.connect()
        request.headers.update(self._headers)
        self._protocol.send_request(request)
        self._flush()

    def data_received(self, data: bytes) -> None:
        now = self._clock()
        self._protocol.receive_data(data)
        try:
            for event in self._protocol.events_received():
                self._event(now, event)
        except RequestFailed as failed:
            self._fail(failed)
        self._flush()

    def _event(self, now: float, event: Any) -> None:
        if isinstance(event, Response):
            if event.status_code != 101:
                raise RequestFailed("status", event.reason_phrase, event.status_code)
            self._opened.set_result(None)
        elif isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.CONT):
            self._text += event.data
            if event.fin:
                self._take(now, document(bytes(self._text)))
                self._text.clear()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if self._transport and data:
                self._transport.write(data)

    def _fail(self, failed: RequestFailed) -> None:
        if not self._over.done():
            self._over.set_exception(failed)
            self._over.exception()  # perhaps nobody waits for it any more

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(RequestFailed("disconnected", str(exc or "the server closed the connection")))

    def close(self) -> None:
        """Leave at once."""
        self.finish()
        if self._transport:
            self._transport.abort()
