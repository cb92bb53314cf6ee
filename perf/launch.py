"""Starts servers as subprocesses and stops them: the bench measures what a user would run, from outside."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from perf.client.routes import Target
from serving.errors import SetupError

ADDRESS = re.compile(r"https?://[\w.\-\[\]:]+:\d+")
GRACE = 20.0  # seconds between asking a server to stop and making it


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that serves: it prints its address, or `url` says where it will be."""

    command: Sequence[str]
    model: str
    label: str
    url: str | None = None
    ready_path: str = "/health/ready"
    start_seconds: float = 600.0
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Running:
    """A target, and the process behind it where the bench started one."""

    target: Target
    pid: int | None = None


def toolkit(key: str, *options: str, label: str | None = None) -> Launch:
    """`toolkit serve KEY` on a free port."""
    command = [sys.executable, "-m", "toolkit.cli.main", "serve", key, "--port", "0", *options]
    return Launch(command, key, label or key)


@contextlib.contextmanager
def running(what: Target | Launch, logs: Path) -> Iterator[Running]:
    """A target as it is, or a launched server that is ready now and gone afterwards."""
    with all_running([what], logs) as (one,):
        yield one


@contextlib.contextmanager
def all_running(targets: Sequence[Target | Launch], logs: Path) -> Iterator[list[Running]]:
    """Several at once: they start side by side, and are all ready now."""
    with contextlib.ExitStack() as stack:
        waits = [stack.enter_context(_started(what, logs)) for what in targets]
        yield [wait() for wait in waits]


@contextlib.contextmanager
def _started(what: Target | Launch, logs: Path) -> Iterator[Callable[[], Running]]:
    """A process that is being started, by a function that waits until it is ready."""
    if isinstance(what, Target):
        yield lambda: Running(what)
        return
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', what.label)}.log"
    with log.open("wb") as out:
        # A group of its own: its workers stop with it, and a Ctrl-C at the terminal is ours alone.
        env = {**os.environ, "PYTHONUNBUFFERED": "1", **what.env}
        process = subprocess.Popen(
            list(what.command), stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
        )
    try:
        yield lambda: Running(Target(_wait(what, process, log), what.model, what.label), process.pid)
    finally:
        stop(process)


@contextlib.contextmanager
def alone(live: Running, targets: Sequence[Running]) -> Iterator[None]:
    """Of the servers that were started only this one runs: others may be busy though nobody asks them for anything."""
    others = [one.pid for one in targets if one.pid and one.pid != live.pid]
    _signal(others, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(others, signal.SIGCONT)


def _signal(groups: Sequence[int], which: signal.Signals) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, which)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the group we started, SIGKILL if it is not gone in time."""
    for how, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            return


def _wait(what: Launch, process: subprocess.Popen[bytes], log: Path) -> str:
    """The base URL, once the server says that it is ready. `SetupError` shows the end of its log."""
    limit = time.monotonic() + what.start_seconds
    while time.monotonic() < limit and process.poll() is None:
        found = ADDRESS.search(log.read_text(errors="replace"))
        url = what.url or (found[0] if found else None)
        if url and _ready(url + what.ready_path):
            return url
        time.sleep(0.1)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    state = "did not get ready in time" if process.poll() is None else f"ended with status {process.returncode}"
    raise SetupError(f"The server {what.label!r} {state}. The end of its log:\n{tail}")


def _ready(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False
