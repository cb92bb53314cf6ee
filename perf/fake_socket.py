"""The scripted server's WebSockets: `/generate/ws` and `/v1/realtime`.

Each append to `/generate/ws` is answered `first` seconds later by `size` items, all of it is done `gaps[0]` after the
last. A commit on `/v1/realtime` is answered after `first` seconds by a delta, then one more after each gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from websockets.frames import Frame
from websockets.http11 import Request
from websockets.server import ServerProtocol

from perf.fake_script import Script, array

TRANSCRIPTION = "conversation.item.input_audio_transcription"


class Conversation:
    """One socket that has asked to be upgraded."""

    def __init__(self, path: str, script: Script, writer: asyncio.StreamWriter) -> None:
        self._script, self._writer = script, writer
        self._realtime = path.startswith("/v1/realtime")
        self._random = random.Random(script.spoil)
        self._protocol = ServerProtocol(max_size=None)
        self._appends = 0
        self._last: asyncio.Task[None] | None = None

    async def run(self, head: str, reader: asyncio.StreamReader) -> None:
        """Answer until the client leaves or the script hangs up."""
        self._receive(head.encode("latin-1"))
        try:
            while data := await reader.read(1 << 16):
                self._receive(data)
        finally:
            if self._last:
                self._last.cancel()
                await asyncio.gather(self._last, return_exceptions=True)

    def _receive(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._protocol.send_response(self._protocol.accept(event))
            elif isinstance(event, Frame):
                self._message(json.loads(bytes(event.data)))
        self._flush()

    def _message(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "append":
            due = asyncio.get_running_loop().time() + self._script.first
            self._then(partial(self._answer, self._appends, due))
            self._appends += 1
        elif kind == "end_input":
            self._then(partial(self._after, self._script.gaps[0] if self._script.gaps else 0.0, {"type": "done"}))
        elif kind == "input_audio_buffer.commit":
            self._then(self._transcript)

    def _then(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """After what has been started before."""
        before = self._last

        async def run() -> None:
            if before:
                await before
            with contextlib.suppress(ConnectionError):
                await step()

        self._last = asyncio.create_task(run())

    async def _answer(self, index: int, due: float) -> None:
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        if self._fault(index):
            return
        self._send({"type": "output", "port": "tokens", "data": array(self._random, self._script.size)})

    async def _after(self, seconds: float, message: dict[str, Any]) -> None:
        await asyncio.sleep(seconds)
        if self._script.fault is None:
            self._send(message)

    async def _transcript(self) -> None:
        said = []
        for i, wait in enumerate(self._script.moments):
            await asyncio.sleep(wait)
            if self._fault(i):
                return
            said.append(self._random.choice(("one ", "two ", "three ")))
            self._send({"type": f"{TRANSCRIPTION}.delta", "delta": said[-1]})
        self._send({"type": f"{TRANSCRIPTION}.completed", "transcript": "".join(said).strip()})

    def _fault(self, index: int) -> bool:
        """Whether the script misbehaves instead of this answer."""
        if self._script.fault is None or index < self._script.at:
            return False
        if self._script.fault == "error" and index == self._script.at:
            self._send({"type": "error", "error": {"message": "as scripted"}})
        elif self._script.fault == "drop":
            self._writer.transport.abort()
        return True

    def _send(self, message: dict[str, Any]) -> None:
        self._protocol.send_text(json.dumps(message).encode())
        self._flush()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data and not self._writer.transport.is_closing():
                self._writer.write(data)
