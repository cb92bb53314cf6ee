"""OpenAI's transcription route over any function, with the standard library only: it runs in a peer's environment.

As thin as can be, so that what is measured is the peer: one thread a connection, the file from the form, the text
in JSON. `/v1/server_info` names versions and settings, which the bench records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    request_queue_size = 512
    daemon_threads = True


def serve(transcribe: Callable[[bytes], str], info: Mapping[str, Any]) -> None:
    """Serve on a free local port until stopped; prints the address. `transcribe`: a WAV file to its text."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer({"data": [{"id": info["name"]}]} if self.path == "/v1/models" else dict(info))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self._answer({"text": transcribe(form_file(self.headers["content-type"], body))})

        def _answer(self, value: Mapping[str, Any]) -> None:
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a line a request is work that the peer would not do."""

    with Server(("127.0.0.1", 0), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


def form_file(content_type: str, body: bytes) -> bytes:
    """The field "file" of a multipart form."""
    form = message_from_bytes(b"content-type: " + content_type.encode() + b"\r\n\r\n" + body)
    for part in form.walk():
        if part.get_param("name", header="content-disposition") == "file":
            payload = part.get_payload(decode=True)
            assert isinstance(payload, bytes)
            return payload
    raise ValueError("the form has no field named file")
