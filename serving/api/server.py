"""One server process: uvicorn with a start that is announced when it is true, and two-step signals.

The first SIGTERM or SIGINT drains: no new requests, those in the server may finish within `drain_seconds`. The
second stops at once.
"""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from serving.api.logs import configure
from serving.errors import SetupError
from serving.settings import ServerSettings


class Server(uvicorn.Server):
    """`ready(url)` is called once, when the engine takes requests."""

    def __init__(self, app: FastAPI, settings: ServerSettings, ready: Callable[[str], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=round(settings.drain_seconds),
                ws_max_size=settings.limits.message_bytes,
                server_header=False,
            )
        )
        self.app, self.announce = app, ready
        self.failure: BaseException | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.app.state.starting.add_done_callback(self._engine_started)

    def _engine_started(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        self.failure = task.exception()
        if self.failure:
            self.should_exit = True
        else:
            self.announce(self.url)

    @property
    def url(self) -> str:
        """The address with the real port, which differs from the setting where that is 0."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self.app.state.api.draining = True


def bind(settings: ServerSettings) -> socket.socket:
    """The server's address, taken: before models are loaded, as loading may be long. Raises `SetupError`.

    It does not listen yet, so that clients are refused until the server can answer them.
    """
    at = f"{settings.host}:{settings.port}"
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SetupError(f"{at} is in use. Take another port, or 0 for a free one.", param="port") from None
        raise SetupError(f"Cannot listen on {at}: {error.strerror}.", param="host") from None
    return made


def serve(
    app: FastAPI, settings: ServerSettings, ready: Callable[[str], None], at: socket.socket | None = None
) -> None:
    """Run until a signal, on the socket `at` if one is bound already.

    Returns after a clean drain; raises `SetupError` when the server could not start.
    """
    configure(settings.log_level)
    server = Server(app, settings, ready)
    server.run(sockets=[at or bind(settings)])
    if server.failure:
        raise SetupError(f"The engine did not start: {server.failure}")
    if server.force_exit:
        raise SystemExit(128 + signal.SIGTERM)
