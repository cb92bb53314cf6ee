"""What every suite of this repository shares: how to load and to serve a registry key."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

pytest_plugins = ["pytester"]

READY_SECONDS = 120.0


def _load(key: str, options: Mapping[str, Any]) -> Any:
    from models import registry
    from serving.core.contract import Options

    return registry.load(key, Options(**options))


def pytest_parity_load(key: str, options: Mapping[str, Any], config: pytest.Config) -> Any:
    return _load(key, {"device": config.getoption("parity_device"), **options})


@contextmanager
def _serving(key: str, options: Mapping[str, Any]) -> Iterator[str]:
    import uvicorn

    from serving.api import build_app
    from serving.settings import Settings

    listener = socket.create_server(("127.0.0.1", 0))
    app = build_app([_load(key, options)], Settings())
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        _wait(server, thread)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def _wait(server: Any, thread: threading.Thread) -> None:
    until = time.monotonic() + READY_SECONDS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > until:
            raise RuntimeError("the server did not start")
        time.sleep(0.01)


def pytest_parity_serve(key: str, options: Mapping[str, Any], config: pytest.Config) -> AbstractContextManager[str]:
    return _serving(key, options)
