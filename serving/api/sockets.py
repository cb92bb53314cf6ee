"""What the WebSocket routes share: JSON messages both ways, bounded, and errors that leave the socket open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic_core import from_json
from starlette.websockets import WebSocket, WebSocketDisconnect

from serving.api.auth import PROTOCOL_PREFIX
from serving.api.boundary import Exchange
from serving.api.errors import to_error
from serving.api.state import Api
from serving.errors import BadRequest, Cancelled, TooLarge

T = TypeVar("T")


class Socket:
    """A connection that speaks JSON objects. One reader, any number of writers."""

    def __init__(self, websocket: WebSocket) -> None:
        self.websocket = websocket
        self.api: Api = websocket.app.state.api
        self.exchange: Exchange = websocket.scope["exchange"]
        self._writing = asyncio.Lock()
        self._reading: asyncio.Task[dict[str, Any]] | None = None

    async def accept(self) -> None:
        """Open the connection, with the subprotocol that browsers need in order to send a key."""
        offered = self.websocket.scope.get("subprotocols", ())
        chosen = next((one for one in offered if not one.startswith(PROTOCOL_PREFIX)), None)
        await self.websocket.accept(chosen, [(b"x-request-id", self.exchange.request_id.encode())])
        self.exchange.status = 101

    async def send(self, body: dict[str, Any]) -> None:
        """Send one object. A client that does not read for long is given up."""
        seconds = self.api.settings.timeouts.slow_client
        async with self._writing:
            try:
                async with asyncio.timeout(seconds):
                    await self.websocket.send_text(json.dumps(body, ensure_ascii=False))
            except (TimeoutError, RuntimeError):
                raise WebSocketDisconnect(1006, "the client reads nothing") from None

    async def send_error(self, error: BaseException, **more: Any) -> None:
        """Tell of an error; the connection stays open. What it says is what a response would have said."""
        shown = to_error(error)
        self.exchange.error = shown
        if not isinstance(shown, Cancelled):
            await self.send({"type": "error", "error": {**shown.body()["error"], **more}})

    async def receive(self) -> dict[str, Any]:
        """The next object. Raises `BadRequest` for what is none, `WebSocketDisconnect` at the end."""
        message = await self.websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        data = message.get("text") or message.get("bytes") or ""
        if len(data) > self.api.settings.limits.message_bytes:
            raise TooLarge(
                f"A message may have {self.api.settings.limits.message_bytes} bytes.", code="message_too_large"
            )
        try:
            value = from_json(data, allow_inf_nan=False)
        except ValueError as error:
            raise BadRequest(f"The message is not JSON: {error}.", code="invalid_json") from None
        if not isinstance(value, dict):
            raise BadRequest("A message must be a JSON object.", code="invalid_json")
        return value

    async def next_or(self, work: asyncio.Task[Any]) -> dict[str, Any] | None:
        """The next object, or None when `work` ends first; what arrives then is kept for the next call."""
        self._reading = self._reading or asyncio.create_task(self.receive())
        done, _ = await asyncio.wait({self._reading, work}, return_when=asyncio.FIRST_COMPLETED)
        if self._reading not in done:
            return None
        reading, self._reading = self._reading, None
        return reading.result()

    async def next(self) -> dict[str, Any]:
        """The next object, whether it has been waited for already or not."""
        reading, self._reading = self._reading, None
        return await (reading or self.receive())

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


async def finish(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has gone."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def spawn(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """Start a task that leaves `tasks` when it ends."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
