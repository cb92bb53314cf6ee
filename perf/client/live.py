"""Live sessions: input is appended at its own pace, whatever the server does, while output comes back.

`/generate/ws` takes arrays for any stream of a model; `/v1/realtime` takes sound and gives a transcript once it is
committed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from perf.client.clock import Clock
from perf.client.http import Dial, RequestFailed
from perf.client.readers import message_of
from perf.client.sockets import Socket
from perf.schema import Chunk, Record, Sent
from perf.workloads.base import Stream

TRANSCRIPTION = "conversation.item.input_audio_transcription"


class Dialogue(Protocol):
    """What is said on a socket. `take` returns whether the session is complete."""

    def opening(self) -> list[dict[str, Any]]: ...

    def piece(self, samples: np.ndarray) -> dict[str, Any]: ...

    def closing(self) -> dict[str, Any]: ...

    def take(self, t: float, message: Mapping[str, Any]) -> bool: ...


class Output:
    """Content of a session on its record, with its digest and, where it is to be kept, its bytes."""

    def __init__(self, record: Record, keep: bool) -> None:
        self.record, self.kept = record, bytearray() if keep else None
        self._hash = hashlib.sha256()

    def add(self, t: float, size: int, data: bytes) -> None:
        self.record.chunks.append(Chunk(t, "content" if size else "bare", size))
        self._hash.update(data)
        if self.kept is not None:
            self.kept += data

    def finish(self) -> None:
        self.record.digest = self._hash.hexdigest()


class Generate:
    """`/generate/ws`: samples as float32 arrays; every array that comes back counts its items."""

    def __init__(self, output: Output, stream: Stream, fields: Mapping[str, Any]) -> None:
        self._output, self._stream, self._fields = output, stream, fields

    def opening(self) -> list[dict[str, Any]]:
        return [{"type": "open", **self._fields}]

    def piece(self, samples: np.ndarray) -> dict[str, Any]:
        data = base64.b64encode(samples.astype("<f4").tobytes()).decode()
        array = {"dtype": "float32", "shape": list(samples.shape), "data": data}
        return {"type": "append", "port": self._stream.port, "array": array}

    def closing(self) -> dict[str, Any]:
        return {"type": "end_input", "port": self._stream.port}

    def take(self, t: float, message: Mapping[str, Any]) -> bool:
        kind = message.get("type")
        if kind == "output" and message.get("port") != "info":
            items, data = array_items(message.get("data"))
            self._output.add(t, items, data)
        elif kind in ("error", "cancelled"):
            raise RequestFailed("in_band", message_of(message))
        if kind == "done":
            self._output.record.made = sum(c.size for c in self._output.record.chunks)
        return kind == "done"


class Realtime:
    """`/v1/realtime`: 16-bit samples, a commit, the transcript's deltas and its whole text."""

    def __init__(self, output: Output, stream: Stream) -> None:
        self._output, self._stream = output, stream

    def opening(self) -> list[dict[str, Any]]:
        audio = {"input": {"format": {"type": "audio/pcm", "rate": self._stream.rate}}}
        return [{"type": "session.update", "session": {"type": "transcription", "audio": audio}}]

    def piece(self, samples: np.ndarray) -> dict[str, Any]:
        pcm = (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()
        return {"type": "input_audio_buffer.append", "audio": base64.b64encode(pcm).decode()}

    def closing(self) -> dict[str, Any]:
        return {"type": "input_audio_buffer.commit"}

    def take(self, t: float, message: Mapping[str, Any]) -> bool:
        kind = message.get("type")
        if kind == f"{TRANSCRIPTION}.delta":
            delta = str(message.get("delta") or "")
            self._output.add(t, len(delta), delta.encode())
        elif kind in ("error", f"{TRANSCRIPTION}.failed"):
            raise RequestFailed("in_band", message_of(message))
        if kind == f"{TRANSCRIPTION}.completed":
            self._output.record.text = str(message.get("transcript") or "")
        return kind == f"{TRANSCRIPTION}.completed"


async def converse(
    dial: Dial, url: str, headers: Mapping[str, str], clock: Clock, stream: Stream, talk: Dialogue, record: Record
) -> None:
    """One session, from its connection to its last message. Raises `RequestFailed`."""

    def take(t: float, message: dict[str, Any]) -> None:
        if talk.take(t, message):
            socket.finish()

    try:
        _, socket = await dial(lambda: Socket(clock, url, headers, take))
    except OSError as error:
        raise RequestFailed("refused", str(error)) from error
    try:
        await socket.opened()
        record.head = clock()
        for message in talk.opening():
            socket.send(message)
        await _append(socket, clock, stream, talk, record)
        await socket.over()
    finally:
        socket.close()


async def _append(socket: Socket, clock: Clock, stream: Stream, talk: Dialogue, record: Record) -> None:
    """The input, each piece when it has been spoken; then its end."""
    start = clock()
    for i, samples in enumerate(stream.pieces(), 1):
        due = start + i * stream.every
        await asyncio.sleep(max(0.0, due - clock()))
        record.sends.append(Sent(due, max(due, clock()), len(samples)))
        socket.send(talk.piece(samples))
    record.sends.append(Sent(due, max(due, clock()), 0))
    socket.send(talk.closing())


def array_items(data: Any) -> tuple[int, bytes]:
    """How many items an output has, and its bytes: an array's leading axis, else one; none in what is empty."""
    if isinstance(data, Mapping) and "shape" in data and "data" in data:
        shape = data["shape"]
        return (int(shape[0]) if shape else 1), base64.b64decode(data["data"])
    return int(bool(data)), str(data).encode()
