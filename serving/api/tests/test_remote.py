"""URLs of media: what is fetched, from where, and everything that a server must not be talked into."""

from __future__ import annotations

import asyncio
import gzip
import io
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import numpy as np
import pytest
from PIL import Image

from serving.api.media.remote import Fetcher, public
from serving.api.tests.fake import FakeEngine, Out, client, make_app
from serving.core.contract import Delta
from serving.errors import BadRequest, TooLarge
from serving.settings import MediaOptions

PUBLIC = "93.184.216.34"
PIXELS = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
REDIRECTS = {
    "/moved": "/data",
    "/inside": "http://metadata.internal/latest",
    "/other": "http://elsewhere.example/data",
    "/file": "file:///etc/passwd",
    "/loop": "/loop",
}


def png():
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, "PNG")
    return buffer.getvalue()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.seen.append((self.headers["host"], self.path))
        if self.path in REDIRECTS:
            self.answer(302, b"", location=REDIRECTS[self.path])
        elif self.path == "/data":
            self.answer(200, b"sound")
        elif self.path == "/a.png":
            self.answer(200, png())
        elif self.path == "/large":
            self.stream_until_closed()
        elif self.path == "/slow":
            time.sleep(1.0)
            self.answer(200, b"late")
        elif self.path == "/packed":
            self.answer(200, gzip.compress(bytes(1 << 20)), **{"content-encoding": "gzip"})
        else:
            self.answer(200 if self.path == "/empty" else 404, b"")

    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def stream_until_closed(self):
        """More than any limit, without saying so first."""
        self.send_response(200)
        self.end_headers()
        try:
            while True:
                self.wfile.write(bytes(4096))
                self.server.sent += 4096
        except OSError:
            return


class ToLoopback(httpx.AsyncBaseTransport):
    """The public internet of these tests: whatever address is connected to is the server here."""

    def __init__(self, port):
        self.port, self.connected = port, []

    async def handle_async_request(self, request):
        self.connected.append((request.url.host, request.extensions.get("sni_hostname")))
        request.url = request.url.copy_with(host="127.0.0.1", port=self.port)
        async with httpx.AsyncHTTPTransport() as inner:
            response = await inner.handle_async_request(request)
            body = b""
            async for part in response.stream:
                body += part
                if len(body) > 1 << 20:
                    break
        return httpx.Response(response.status_code, headers=response.headers, stream=httpx.ByteStream(body))


@pytest.fixture(scope="module")
def web():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen, server.sent, server.daemon_threads = [], 0, True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


ADDRESSES = {"media.example": [PUBLIC], "metadata.internal": ["169.254.169.254"], "elsewhere.example": [PUBLIC]}


def fetcher(web, addresses=None, **options):
    async def resolve(host, port):
        return {**ADDRESSES, **(addresses or {})}[host]

    made = MediaOptions(**{"remote_hosts": ("media.example", "metadata.internal"), **options})
    return Fetcher(made, resolve, ToLoopback(web.server_address[1]))


async def test_a_listed_host_is_fetched_at_the_address_that_was_checked(web):
    one = fetcher(web)
    assert await one.read("http://media.example/data", "audio") == b"sound"
    assert one._transport.connected == [(PUBLIC, "media.example")]
    assert web.seen[-1] == ("media.example", "/data")
    assert await one.read("HTTP://MEDIA.example/moved", "audio") == b"sound"
    assert len(one._transport.connected) == 3


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://elsewhere.example/data", "unsupported_url"),
        ("http://media.example:81/data", "unsupported_url"),
        ("http://media.example@elsewhere.example/data", "unsupported_url"),
        ("http://user:secret@media.example/data", "unsupported_url"),
        ("http://media.example.elsewhere.example/data", "unsupported_url"),
        ("ftp://media.example/data", "unsupported_url"),
        ("file:///etc/passwd", "unsupported_url"),
        ("http://media.example/inside", "unsupported_url"),
        ("http://media.example/other", "unsupported_url"),
        ("http://media.example/file", "unsupported_url"),
        ("http://metadata.internal/latest", "unsupported_url"),
        ("http://[::1", "unsupported_url"),
        ("http://media.example/loop", "remote_failed"),
        ("http://media.example/missing", "remote_failed"),
        ("http://media.example/packed", "remote_failed"),
        ("http://media.example/empty", "empty_file"),
    ],
)
async def test_what_is_refused(web, url, code):
    one = fetcher(web)
    with pytest.raises(BadRequest) as error:
        await one.read(url, "audio")
    assert (error.value.code, error.value.param) == (code, "audio")
    assert {host for host, _ in one._transport.connected} <= {PUBLIC}


@pytest.mark.parametrize("addresses", [["127.0.0.1"], [PUBLIC, "10.0.0.8"], [PUBLIC, "::1"], ["fe80::1%eth0"], []])
async def test_a_listed_name_that_points_inside_is_never_connected_to(web, addresses):
    one = fetcher(web, {"media.example": addresses})
    with pytest.raises(BadRequest, match="public internet"):
        await one.read("http://media.example/data", "audio")
    assert one._transport.connected == []


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        (PUBLIC, True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fd00::1", False),
        ("fe80::1", False),
        ("ff0e::1", False),
        ("::ffff:127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("2002:7f00:1::", False),
        ("localhost", False),
    ],
)
def test_addresses_of_the_public_internet(address, is_public):
    assert public(address) is is_public


async def test_size_and_time_are_bounded(web):
    with pytest.raises(TooLarge) as large:
        await fetcher(web, remote_bytes=10_000).read("http://media.example/large", "audio")
    assert (large.value.status, large.value.code) == (413, "remote_too_large")
    began = time.monotonic()
    with pytest.raises(BadRequest) as slow:
        await fetcher(web, remote_seconds=0.1).read("http://media.example/slow", "audio")
    assert slow.value.code == "remote_timeout"
    assert time.monotonic() - began < 0.9


async def test_a_name_without_an_address_is_said(web):
    async def nowhere(host, port):
        raise OSError("no such name")

    one = Fetcher(MediaOptions(remote_hosts=("media.example",)), nowhere)
    with pytest.raises(BadRequest, match="no address"):
        await one.read("http://media.example/data", "audio")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/videos/generations", "/generate"])
async def test_routes_fetch_only_with_a_list(web, path):
    """The same request with and without `media.remote_hosts`."""
    url = "http://media.example/a.png"
    bodies = {
        "/v1/chat/completions": {
            "model": "talker",
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}],
        },
        "/v1/videos/generations": {"model": "filmer", "prompt": "rain", "output_format": "gif", "image": url},
        "/generate": {"model": "actor", "image": url},
    }
    outputs = {
        "chat": Out("text", Delta(text="Hi")),
        "video": Out("video", PIXELS[None]),
        "generate": Out("action", PIXELS),
    }
    app, engine = make_app(FakeEngine(lambda task: [outputs[task.kind]]), keys=("talker", "filmer", "actor"))
    async with client(app) as http:
        refused = await http.post(path, json=bodies[path])
        app.state.api.fetcher = fetcher(web)
        fetched = await http.post(path, json=bodies[path])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_url")
    assert fetched.status_code == 200, fetched.text
    (handle,) = engine.submitted
    inputs = handle.task.inputs
    shown = inputs["messages"][0]["content"][0]["image"] if "messages" in inputs else inputs["images"][0]
    np.testing.assert_array_equal(shown, PIXELS)


async def test_a_client_that_leaves_ends_the_fetch(web):
    task = asyncio.create_task(fetcher(web).read("http://media.example/slow", "audio"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
