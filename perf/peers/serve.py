"""OpenAI's routes over plain functions, with the standard library only: it runs in a peer's environment.

As thin as can be, so that what is measured is the peer: one thread a connection, at most `at_once` of them in the
peer. A client that has left before its turn is not worked for. `/v1/server_info` names versions and settings, which the
bench records.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

UNKNOWN = 0xFFFFFFFF  # the length of a WAV file that is still being made


class Left(Exception):
    """The client has closed its connection."""


class Server(ThreadingHTTPServer):
    request_queue_size = 512
    daemon_threads = True


class Turns:
    """A context of `places`, given in the order of asking: a semaphore would serve whoever has just been answered."""

    def __init__(self, places: int) -> None:
        self._free, self._lock = places, threading.Lock()
        self._waiting: deque[threading.Event] = deque()

    def __enter__(self) -> None:
        called = threading.Event()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            self._waiting.append(called)
        called.wait()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


@dataclass
class Peer:
    """What is served: `transcribe` a WAV file, `speak` a text as pieces of 16-bit PCM, `chat` as pieces of text.

    `chat` gets the request's body. `info`: name, versions and settings.
    """

    info: Mapping[str, Any]
    transcribe: Callable[[bytes], str] | None = None
    speak: Callable[[str], Iterable[bytes]] | None = None
    chat: Callable[[Mapping[str, Any]], Iterable[str]] | None = None
    rate: int = 24_000
    at_once: int | None = None
    turn: Turns = field(init=False)

    def __post_init__(self) -> None:
        self.turn = Turns(self.at_once or 10**6)


def serve(peer: Peer) -> None:
    """Serve on a free local port until stopped; prints the address."""
    handler = type("Bound", (Handler,), {"peer": peer})
    with Server(("127.0.0.1", 0), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


class Handler(BaseHTTPRequestHandler):
    """A connection. Its answers are documents, or chunks as they are made."""

    peer: Peer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        info = self.peer.info
        self._document({"data": [{"id": info["name"]}]} if self.path == "/v1/models" else dict(info))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            if self.path.endswith("transcriptions"):
                self._transcribe(form_file(self.headers["content-type"], body))
            elif self.path.endswith("speech"):
                self._chunks("audio/wav", self._wav(str(json.loads(body)["input"])))
            else:
                self._chunks("text/event-stream", self._events(json.loads(body)))
        except (Left, ConnectionError):
            self.close_connection = True

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """A place in the peer; raises `Left` where nobody waits for the answer any more."""
        with self.peer.turn:
            if left(self.connection):
                raise Left
            yield

    def _transcribe(self, wav: bytes) -> None:
        assert self.peer.transcribe is not None
        with self._turn():
            said = self.peer.transcribe(wav)
        self._document({"text": said})

    def _wav(self, text: str) -> Iterator[bytes]:
        assert self.peer.speak is not None
        opening = wav_header(self.peer.rate)
        with self._turn():
            for piece in self.peer.speak(text):
                yield opening + piece
                opening = b""

    def _events(self, body: Mapping[str, Any]) -> Iterator[bytes]:
        assert self.peer.chat is not None
        tokens = 0
        with self._turn():
            for tokens, piece in enumerate(self.peer.chat(body), 1):
                usage = {"completion_tokens": tokens}
                yield event({"choices": [{"index": 0, "delta": {"content": piece}}], "usage": usage})
        yield event({"choices": [], "usage": {"completion_tokens": tokens}}) + b"data: [DONE]\n\n"

    def _chunks(self, kind: str, pieces: Iterable[bytes]) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _document(self, value: Mapping[str, Any]) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line a request is work that the peer would not do."""


def left(connection: socket.socket) -> bool:
    """Whether the other side has closed: nothing else can be read while its request is being answered."""
    try:
        return bool(select.select([connection], [], [], 0)[0]) and not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def event(value: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def wav_header(rate: int) -> bytes:
    """Of 16-bit mono whose length is not known yet."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", UNKNOWN, b"WAVE") + form + struct.pack("<4sI", b"data", UNKNOWN)


def form_file(content_type: str, body: bytes) -> bytes:
    """The field "file" of a multipart form."""
    form = message_from_bytes(b"content-type: " + content_type.encode() + b"\r\n\r\n" + body)
    for part in form.walk():
        if part.get_param("name", header="content-disposition") == "file":
            payload = part.get_payload(decode=True)
            assert isinstance(payload, bytes)
            return payload
    raise ValueError("the form has no field named file")
