"""From the bytes of a response to the events of a `Record`, by route and by what the server says it sends."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from perf.client.http import RequestFailed
from perf.client.sound import PcmStream
from perf.schema import Chunk, Record


class Reader:
    """Base: status, digest, and the bytes themselves where they are to be kept."""

    def __init__(self, record: Record, *, declared_rate: int | None = None, keep: bool = False) -> None:
        self.record = record
        self.kept: bytearray | None = bytearray() if keep else None
        self._declared_rate = declared_rate
        self._hash = hashlib.sha256()
        self._error: bytearray | None = None
        self._status = 0

    def head(self, t: float, status: int, headers: Mapping[str, str]) -> None:
        self.record.head, self._status = t, status
        if status != 200:
            self._error = bytearray()
        self.start(headers)

    def piece(self, t: float, data: bytes, complete: bool) -> None:
        if self._error is not None:
            self._error += data
        else:
            self.take(t, data, complete)

    def finish(self) -> None:
        """The response is complete: raise `RequestFailed` unless it is also an answer."""
        if self._error is not None:
            raise RequestFailed("status", _message(bytes(self._error)), self._status)
        self.close()
        self.record.digest = self._hash.hexdigest()

    def start(self, headers: Mapping[str, str]) -> None:
        """Headers have come."""

    def take(self, t: float, data: bytes, complete: bool) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Check that the answer is whole."""

    def add(self, t: float, size: int, data: bytes, tokens: int = 0) -> None:
        """Content, or a chunk without any."""
        self.record.chunks.append(Chunk(t, "content" if size else "bare", size, tokens))
        self._hash.update(data)
        if self.kept is not None:
            self.kept += data


class AudioReader(Reader):
    """Speech: a streamed or whole WAV, or PCM, plain or as OpenAI's server-sent events."""

    def start(self, headers: Mapping[str, str]) -> None:
        self._pcm = PcmStream(headers, self._declared_rate)
        self._sse = Events() if "event-stream" in headers.get("content-type", "") else None
        self._first = 0  # index of the first record chunk of this HTTP chunk
        self._chunk, self._before = bytearray(), b""

    def take(self, t: float, data: bytes, complete: bool) -> None:
        if self._sse is None:
            return self._audio(t, data, complete)
        for event in self._sse.feed(data):
            if "audio" in event:
                self._audio(t, base64.b64decode(event["audio"]), True)
            elif event.get("type") != "speech.audio.done":
                self.add(t, 0, b"")

    def _audio(self, t: float, data: bytes, complete: bool) -> None:
        samples = self._pcm.feed(data)
        self.record.sound = self._pcm.sound
        self.add(t, self._pcm.frames(samples), samples)
        self._chunk += data
        if complete:
            self._mark_repeat()

    def _mark_repeat(self) -> None:
        """A chunk equal to the one before, byte for byte, is that one sent twice, unless it is silence."""
        chunk, chunks = bytes(self._chunk), self.record.chunks
        if chunk == self._before and len(set(chunk)) > 1:
            chunks[self._first :] = [c._replace(kind="repeat") for c in chunks[self._first :]]
        self._before, self._first = chunk, len(chunks)
        self._chunk.clear()

    def close(self) -> None:
        self._pcm.finish()


class TextReader(Reader):
    """Chat and transcription: one JSON document, or server-sent events."""

    def start(self, headers: Mapping[str, str]) -> None:
        self._sse = Events() if "event-stream" in headers.get("content-type", "") else None
        self._body, self._last, self._text = bytearray(), 0.0, ""
        self._counted, self._finished = 0, False

    def take(self, t: float, data: bytes, complete: bool) -> None:
        self._last = t
        if self._sse is None:
            self._body += data
            return
        for event in self._sse.feed(data):
            self._event(t, event)
        self._finished |= self._sse.done

    def _event(self, t: float, event: Mapping[str, Any]) -> None:
        self._finished |= event.get("type") == "transcript.text.done"
        tokens = self._usage(event)
        delta = _delta(event)
        self._text += delta
        self.add(t, len(delta), delta.encode(), tokens if delta else 0)

    def _usage(self, event: Mapping[str, Any]) -> int:
        """Tokens that this event adds to the running count, where the server keeps one."""
        usage = event.get("usage") or {}
        total = usage.get("completion_tokens", usage.get("output_tokens"))
        if total is None:
            return 0
        added, self._counted = total - self._counted, total
        self.record.tokens = total
        return added

    def close(self) -> None:
        if self._sse is None:
            event = document(bytes(self._body))
            self._usage(event)
            self._text = _whole(event)
            self.add(self._last, len(self._text), self._text.encode())
        elif not self._finished:
            raise RequestFailed("truncated", "the event stream stopped without its last event")
        self.record.text = self._text


class Events:
    """Server-sent events with JSON data; an error event raises."""

    def __init__(self) -> None:
        self._buffer = b""
        self.done = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        *blocks, self._buffer = (self._buffer + data).replace(b"\r\n", b"\n").split(b"\n\n")
        return [event for block in blocks if (event := self._parse(block)) is not None]

    def _parse(self, block: bytes) -> dict[str, Any] | None:
        lines = (line[5:].strip() for line in block.split(b"\n") if line.startswith(b"data:"))
        data = b"\n".join(lines)
        if data == b"[DONE]":
            self.done = True
            return None
        event = document(data) if data else {}
        if event.get("error") or event.get("type") == "error":
            raise RequestFailed("in_band", _message(data))
        return event


def document(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises `RequestFailed`."""
    try:
        found = json.loads(data)
    except ValueError:
        raise RequestFailed("malformed", f"not JSON: {data[:80]!r}") from None
    if not isinstance(found, dict):
        raise RequestFailed("malformed", f"not a JSON object: {data[:80]!r}")
    return found


def _delta(event: Mapping[str, Any]) -> str:
    """New text of a chat or transcription event."""
    if event.get("type") == "transcript.text.delta":
        return event.get("delta") or ""
    choices = event.get("choices") or [{}]
    return (choices[0].get("delta") or {}).get("content") or ""


def _whole(event: Mapping[str, Any]) -> str:
    """The text of a document that is not streamed."""
    if event.get("choices"):
        return (event["choices"][0].get("message") or {}).get("content") or ""
    if "text" not in event:
        raise RequestFailed("malformed", f"no text in the answer: {sorted(event)}")
    return str(event["text"])


def message_of(event: Mapping[str, Any]) -> str:
    """The message of OpenAI's error envelope, in short."""
    error = event.get("error")
    return str(error.get("message", error) if isinstance(error, Mapping) else error)[:300]


def _message(body: bytes) -> str:
    """The message of a document's error, or the start of whatever came."""
    try:
        return message_of(document(body)) if b"error" in body else body[:300].decode("utf-8", "replace")
    except RequestFailed:
        return body[:300].decode("utf-8", "replace")
