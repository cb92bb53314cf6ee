"""A headless Chromium over its debugging protocol: enough to load a page, run script in it and take its picture."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run",
         "--autoplay-policy=no-user-gesture-required", "--use-fake-device-for-media-stream",
         "--use-fake-ui-for-media-stream", "--disable-dev-shm-usage")  # fmt: skip


class Tab:
    """One page."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._count = socket, 0
        self.messages: list[dict[str, Any]] = []

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": params}))
        while (answer := json.loads(self._socket.recv(timeout=20))).get("id") != self._count:
            self.messages.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def run(self, script: str) -> Any:
        """The value of a script in the page; promises are awaited."""
        made = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in made, made
        return made["result"].get("value")

    def wait(self, script: str, seconds: float = 15.0) -> None:
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, (script, self.run("document.body && document.body.innerText"))
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot")["data"]))

    def faults(self) -> list[dict[str, Any]]:
        """What the page's console complained of."""
        self.run("0")
        kinds = {"Runtime.exceptionThrown", "Log.entryAdded"}
        return [one for one in self.messages if one.get("method") in kinds]


@contextlib.contextmanager
def browser(url: str) -> Iterator[Tab]:
    """A tab that has loaded `url`."""
    assert BINARY
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [BINARY, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr
            found = next(filter(None, (re.search(r"ws://([\d.:]+)/", line) for line in process.stderr)))
            targets = httpx.get(f"http://{found[1]}/json").json()
            page = next(one for one in targets if one["type"] == "page")
            with connect(page["webSocketDebuggerUrl"], max_size=None) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log"):
                    tab.send(f"{domain}.enable")
                tab.send("Page.navigate", url=url)
                tab.wait(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")
                yield tab
        finally:
            process.terminate()
            process.wait(10)
