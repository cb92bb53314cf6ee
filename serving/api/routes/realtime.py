"""`/v1/realtime`: a transcription session. Sound is appended and committed; a commit is one item with one transcript.

Every item ends in exactly one of `completed` and `failed`. Closing the socket cancels what runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import numpy as np
from pydantic import BaseModel
from starlette.websockets import WebSocket, WebSocketDisconnect

from serving.api.body import Body
from serving.api.errors import to_error
from serving.api.media.images import from_base64
from serving.api.protocol.realtime import (
    EVENTS,
    TRANSCRIPTION,
    Append,
    CancelAll,
    Clear,
    Commit,
    Session,
    Update,
    event,
    identifier,
)
from serving.api.protocol.transcription import Deltas, usage
from serving.api.protocol.transcription import Transcription as Fields
from serving.api.run import Call
from serving.api.sockets import Socket, finish, spawn
from serving.api.state import Spec
from serving.core.contract import Audio, Task
from serving.errors import BadRequest, Cancelled, TooLarge, nearest
from serving.strict import check

KIND = "transcribe"


class Buffer:
    """16-bit samples that have come and are not committed."""

    def __init__(self, seconds: float) -> None:
        self.most, self.bytes = seconds, 0
        self.parts: list[bytes] = []

    def append(self, data: bytes, rate: int) -> None:
        if (self.bytes + len(data)) / 2 / rate > self.most:
            raise TooLarge(f"The buffer holds {self.most:g} seconds; commit or clear it.", param="audio")
        self.parts.append(data)
        self.bytes += len(data)

    def clear(self) -> None:
        self.parts, self.bytes = [], 0

    def take(self, rate: int) -> Audio:
        """What is there as sound; the buffer is empty afterwards."""
        if self.bytes < 2 or self.bytes % 2:
            raise BadRequest("The buffer is empty or ends in half a sample.", code="input_audio_buffer_commit_empty")
        samples = np.frombuffer(b"".join(self.parts), "<i2").astype(np.float32) / 32768
        self.clear()
        return Audio(samples[None], rate)


class Conversation:
    """One session: its configuration, its buffer, and the transcripts that are being made, in order."""

    def __init__(self, socket: Socket, model: str) -> None:
        self.socket, self.model = socket, model
        self.id, self.session = identifier("sess"), Session()
        self.buffer = Buffer(socket.api.settings.limits.audio_seconds)
        self.last: str | None = None
        self.turn = asyncio.Lock()
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve events until the client leaves."""
        self._call(self.session)  # refuses a model that cannot, before anything else
        await self.socket.send(event("session.created", session=self._shown()))
        while True:
            name = None
            try:
                message = await self.socket.next()
                name = message.get("event_id")
                await self._apply(message)
            except WebSocketDisconnect:
                return
            except Exception as error:
                await self.socket.send_error(error, event_id=name)

    async def close(self) -> None:
        await asyncio.gather(*(finish(task) for task in list(self.tasks)))

    async def _apply(self, message: dict[str, Any]) -> None:
        kind = str(message.get("type"))
        if kind not in EVENTS:
            raise BadRequest(f'No event "{kind}".{nearest(kind, EVENTS)}', param="type", code="unknown_event")
        asked = check(EVENTS[kind], message)
        if isinstance(asked, Update):
            self._call(asked.session)
            self.session = asked.session
            await self.socket.send(event("session.updated", session=self._shown()))
        elif isinstance(asked, Append):
            self.buffer.append(from_base64(asked.audio, "audio"), self.session.audio.input.format.rate)
        elif isinstance(asked, Clear):
            self.buffer.clear()
            await self.socket.send(event("input_audio_buffer.cleared"))
        elif isinstance(asked, CancelAll):
            for task in list(self.tasks):
                task.cancel()
        elif isinstance(asked, Commit):
            await self._commit()

    async def _commit(self) -> None:
        audio = self.buffer.take(self.session.audio.input.format.rate)
        item, before = identifier("item"), self.last
        self.last = item
        await self.socket.send(event("input_audio_buffer.committed", item_id=item, previous_item_id=before))
        spawn(self._transcribe(item, audio, self.session), self.tasks)

    async def _transcribe(self, item: str, audio: Audio, session: Session) -> None:
        """One item's transcript; items answer in the order of their commits."""
        common = {"item_id": item, "content_index": 0}
        try:
            async with self.turn:
                text = await self._deltas(item, audio, session)
            end = event(f"{TRANSCRIPTION}.completed", **common, transcript=text, usage=usage(audio.seconds))
        except (Exception, asyncio.CancelledError) as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            shown = Cancelled("The transcription was cancelled.") if cancelled else to_error(error)
            end = event(f"{TRANSCRIPTION}.failed", **common, error=shown.body()["error"])
        with contextlib.suppress(WebSocketDisconnect):
            await self.socket.send(end)

    async def _deltas(self, item: str, audio: Audio, session: Session) -> str:
        call = self._call(session)
        model, parsed = call.parse()
        deltas = Deltas()
        task = Task(KIND, {"audio": audio}, parsed.knobs)
        handle = await call.submit(model, task, parsed.route, live=True, name=f"{call.exchange.request_id}-{item}")
        async for output in call.outputs(handle):
            for segment in output.value if output.port == "segments" else ():
                if delta := deltas.push(segment.text):
                    fields = {"item_id": item, "content_index": 0, "delta": delta}
                    await self.socket.send(event(f"{TRANSCRIPTION}.delta", **fields))
        return deltas.sent

    def _call(self, session: Session) -> Call:
        """The request that a commit stands for, its fields checked."""
        asked = session.audio.input.transcription
        fields = {"model": asked.model or self.model, "language": asked.language, "prompt": asked.prompt}
        call = Call(self.socket.api, SPEC, self.socket.exchange, Body(fields))
        call.parse()
        return call

    def _shown(self) -> dict[str, Any]:
        return {"id": self.id, "object": "realtime.transcription_session", **self.session.model_dump(mode="json")}


async def realtime(websocket: WebSocket) -> None:
    """Serve one session until its client leaves."""
    socket = Socket(websocket)
    socket.api.require_served(SPEC)
    query = check(Query, dict(websocket.query_params), text=True)
    await socket.accept()
    session = Conversation(socket, query.model or _only_model(socket))
    try:
        await session.run()
    except WebSocketDisconnect:
        return
    except Exception as error:
        await socket.send_error(error)
        await websocket.close(1008)
    finally:
        await session.close()
        await socket.close()


class Query(BaseModel):
    """The address's query."""

    model_config = {"extra": "forbid"}

    model: str | None = None
    intent: str = "transcription"


def _only_model(socket: Socket) -> str:
    """The model where the client names none: the first that can."""
    return next(key for key, model in socket.api.models.items() if socket.api.serves(model.card, SPEC))


SPEC = Spec("/v1/realtime", realtime, "WS", KIND, Fields, summary="Transcription sessions")
ROUTES = (SPEC,)
