"""`/generate/ws`: requests with client streams, one after another on one connection.

Client: `{"type": "open", "model": ..., knobs}`, then `append` and `end_input` by port, or `cancel`. Server: `output`
by port, then exactly one of `done`, `cancelled`, `error`; after it the next `open` may come. Appends may run ahead of
outputs as far as the model's streams allow.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from serving.api.body import Body
from serving.api.protocol.generate import EVENTS, Append, Cancel, EndInput, Generate, to_json
from serving.api.routes.generate import KIND, submitted
from serving.api.run import Call
from serving.api.sockets import Socket, finish
from serving.api.state import Handle, Spec
from serving.core.contract import Packed
from serving.errors import BadRequest, nearest
from serving.strict import check


async def generate_ws(websocket: WebSocket) -> None:
    """Serve one connection until its client leaves."""
    socket = Socket(websocket)
    socket.api.require_served(SPEC)
    await socket.accept()
    try:
        count = 0
        while True:
            try:
                message = await socket.next()
                await _request(socket, message, count)
            except WebSocketDisconnect:
                raise
            except Exception as error:
                await socket.send_error(error)
            count += 1
    except WebSocketDisconnect:
        return
    finally:
        await socket.close()


async def _request(socket: Socket, message: dict[str, Any], count: int) -> None:
    """One request: from its `open` to its last event."""
    kind = message.pop("type", None)
    if kind != "open":
        raise BadRequest(f'"type" must be "open" between requests, got {kind!r}.', param="type")
    call = Call(socket.api, SPEC, socket.exchange, Body(message))
    handle, _ = await submitted(call, live=True, part=count)
    async with handle:
        outputs = asyncio.create_task(_outputs(socket, handle))
        try:
            while (event := await socket.next_or(outputs)) is not None:
                if await _apply(socket, handle, event):
                    return
            await outputs
        finally:
            await finish(outputs)


async def _outputs(socket: Socket, handle: Handle) -> None:
    async for output in handle:
        await socket.send({"type": "output", "port": output.port, "data": to_json(output.value)})
    await socket.send({"type": "done"})


async def _apply(socket: Socket, handle: Handle, message: dict[str, Any]) -> bool:
    """Do what a client's event says; whether the request is over. A bad event ends the request."""
    kind = str(message.get("type"))
    if kind not in EVENTS:
        raise BadRequest(f'No event "{kind}" within a request.{nearest(kind, EVENTS)}', param="type")
    event = check(EVENTS[kind], message)
    if isinstance(event, Append):
        await handle.append(event.port, Packed.one(event.array.load("array")))
    elif isinstance(event, EndInput):
        await handle.finish(event.port)
    elif isinstance(event, Cancel):
        handle.cancel()
        await socket.send({"type": "cancelled"})
        return True
    return False


SPEC = Spec("/generate/ws", generate_ws, "WS", KIND, Generate, summary="Requests with client streams")
ROUTES = (SPEC,)
