"""An OpenAI-compatible server whose every byte and moment is scripted: what the bench is proved against.

    server = FakeServer(lambda i: Script(first=0.2, gaps=(0.05,) * 9))
    async with server.listening() as url: ...

It can also misbehave as servers do: jitter, chunks of many tokens, bare headers, chunks sent twice, errors
after the first byte, dropped connections, wrong sample rates, answers that change under load.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import random
import re
import struct
import time
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from perf.fake_script import Script, array, line
from perf.fake_socket import Conversation


class FakeServer:
    """Serves scripts in the order of the requests. `slots`: how many are served at once; the others wait."""

    def __init__(self, script: Callable[[int], Script], slots: int | None = None) -> None:
        self._script = script
        self._slots = asyncio.Semaphore(slots) if slots else None
        self.requests = 0
        self.in_flight = self.most_in_flight = 0
        self.abandoned = 0

    @contextlib.asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[str]:
        """Serve on a local port; gives the base URL."""
        server = await asyncio.start_server(self.handle, "127.0.0.1", port)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection: requests one after another."""
        # A handler that ends cancelled makes Python 3.11's stream protocol log a traceback at shutdown.
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not writer.is_closing():
                head, body = await _request(reader)
                path = head.split(" ", 2)[1]
                if "upgrade: websocket" in head.lower():
                    await self._talk(path, head, reader, writer)
                    break
                await self._serve(path, body, writer)
        writer.close()

    async def _talk(self, path: str, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        script = self._script(self.requests)
        self.requests += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await Conversation(path, script, writer).run(head, reader)
        except ConnectionError:
            self.abandoned += 1
        finally:
            self.in_flight -= 1

    async def _serve(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        script = self._script(self.requests)
        self.requests += 1
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            async with self._slots or contextlib.nullcontext():
                await Answer(path, body, script, writer).send()
        except ConnectionError:
            self.abandoned += 1
            raise
        finally:
            self.in_flight -= 1


async def _request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"content-length: *(\d+)", head.lower())
    return head, await reader.readexactly(int(length[1])) if length else b""


class Answer:
    """One response being sent."""

    def __init__(self, path: str, body: bytes, script: Script, writer: asyncio.StreamWriter) -> None:
        self._path, self._body, self._script, self._writer = path, body, script, writer
        self._random = random.Random(zlib.crc32(body) + script.spoil)
        self._sse = "chat" in path or b'"stream_format": "sse"' in body
        self._lines = path == "/generate"
        self._tokens = 0

    async def send(self) -> None:
        model = {"id": "fake", "capabilities": {"sample_rate": 24_000, "tasks": ["speak"]}}
        if self._path == "/v1/models":
            await self._document(200, {"data": [model]})
        elif self._path.startswith(("/health", "/v1/models/")):
            await self._document(200, model)
        elif self._path == "/v1/server_info":
            await self._document(200, {"state": "ready", "api_key": "hidden"})
        elif self._script.status != 200:
            await self._document(self._script.status, {"error": {"message": "as scripted"}})
        elif "transcriptions" in self._path:
            await asyncio.sleep(sum(self._script.moments))
            await self._document(200, {"text": self._words(5 + len(self._body) % 7)})
        elif self._path.startswith(("/v1/images", "/v1/videos")):
            await asyncio.sleep(sum(self._script.moments))
            await self._document(200, {"data": [{"b64_json": self._picture()} for _ in self._script.moments]})
        else:
            await self._stream()

    async def _document(self, status: int, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self._write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        await self._writer.drain()

    async def _stream(self) -> None:
        kind = "text/event-stream" if self._sse else "application/x-ndjson" if self._lines else "audio/wav"
        due = asyncio.get_running_loop().time()  # a schedule, so that being late once is not being late ever after
        self._write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
        early = self._script.header
        opening = self._opening()
        if early is not None:
            await asyncio.sleep(self._script.first - early)
            self._chunk(opening)
            opening = b""
        for i, wait in enumerate(self._script.moments):
            due += wait
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            if self._script.fault and i == self._script.at and await self._misbehave():
                return
            piece = opening + self._piece()
            for _ in range(2 if i in self._script.repeats else 1):
                self._chunk(piece)
            opening = b""
            await self._writer.drain()
        self._close()

    async def _misbehave(self) -> bool:
        """The scripted fault; whether the answer ends here."""
        match self._script.fault:
            case "error":
                if self._sse:
                    self._chunk(_event({"error": {"message": "as scripted"}}))
                elif self._lines:
                    self._chunk(line({"type": "error", "error": {"message": "as scripted"}}))
                else:
                    self._abort()
            case "drop":
                self._abort()
            case "hang":
                await asyncio.sleep(1e6)
            case "stop":
                self._write(b"0\r\n\r\n")
            case "second_header":
                self._chunk(self._opening())
                return False
        return True

    def _opening(self) -> bytes:
        if self._sse:
            return _event({"choices": [{"delta": {"role": "assistant"}}]})
        if self._lines:
            return line({"type": "output", "port": "info", "data": {"steps": 1}})
        promised = 0xFFFFFFFF
        if self._script.fault == "stop":
            promised = 2 * self._script.size * len(self._script.moments)
        rate = self._script.rate
        form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16)
        return b"RIFF\xff\xff\xff\xffWAVE" + form + struct.pack("<4sI", b"data", promised)

    def _piece(self) -> bytes:
        if self._lines:
            return line({"type": "output", "port": "actions", "data": array(self._random, self._script.size)})
        if not self._sse:
            stamp = struct.pack("<d", time.monotonic()) if self._script.stamp else b""
            return stamp + self._random.randbytes(2 * self._script.size - len(stamp))
        self._tokens += self._script.size
        event: dict[str, Any] = {"choices": [{"delta": {"content": self._words(self._script.size) + " "}}]}
        if self._script.usage == "running":
            event["usage"] = {"completion_tokens": self._tokens}
        return _event(event)

    def _words(self, n: int) -> str:
        return " ".join(self._random.choice(("one", "two", "three", "four", "five")) for _ in range(n))

    def _picture(self) -> str:
        """A file that begins like a PNG; an ill one where the script says so."""
        magic = b"text" if self._script.fault == "error" else b"\x89PNG"
        return base64.b64encode(magic + self._random.randbytes(64)).decode()

    def _close(self) -> None:
        if self._sse:
            if self._script.usage == "total":
                self._chunk(_event({"choices": [], "usage": {"completion_tokens": self._tokens}}))
            self._chunk(b"data: [DONE]\n\n")
        if self._lines:
            self._chunk(line({"type": "done"}))
        self._write(b"0\r\n\r\n")

    def _chunk(self, data: bytes) -> None:
        self._write(b"%x\r\n%s\r\n" % (len(data), data))

    def _write(self, data: bytes) -> None:
        if self._writer.transport.is_closing():
            raise ConnectionResetError("the client has left")
        self._writer.write(data)

    def _abort(self) -> None:
        self._writer.transport.abort()


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def main() -> None:
    """Serve one script until stopped: python -m perf.fake_server --port 8000 --first 0.2"""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--first", type=float, default=0.1)
    parser.add_argument("--gap", type=float, default=0.05)
    parser.add_argument("--pieces", type=int, default=5)
    parser.add_argument("--size", type=int, default=2400)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--stamp", action="store_true")
    parser.add_argument(
        "--spread", type=int, default=1, help="so many clients in a row get their chunks at other times"
    )
    parser.add_argument("--fail-every", type=int, default=0, help="every n-th request is dropped after a chunk")
    args = parser.parse_args()
    good = Script(first=args.first, gaps=(args.gap,) * (args.pieces - 1), size=args.size, stamp=args.stamp)
    bad = replace(good, fault="drop")

    def script(i: int) -> Script:
        chosen = bad if args.fail_every and i % args.fail_every == args.fail_every - 1 else good
        return replace(chosen, first=args.first + args.gap * (i % args.spread) / args.spread)

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_forever(FakeServer(script, args.slots), args.port))


async def _serve_forever(server: FakeServer, port: int) -> None:
    async with server.listening(port) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
