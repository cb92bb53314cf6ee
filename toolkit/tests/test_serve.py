"""`toolkit serve` as a user starts it: a process, a port, a Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from perf.launch import running, toolkit

COMMAND = [sys.executable, "-m", "toolkit.cli.main"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running(toolkit("toy"), tmp_path_factory.mktemp("logs")) as made:
        yield made


def test_a_server_is_one_process_while_it_works(server):
    """It starts no other, so that none can outlive it."""
    asked = {"model": "toy", "input": "Good morning.", "response_format": "pcm"}
    assert len(httpx.post(server.target.url + "/v1/audio/speech", json=asked).content) > 100
    tasks = list(Path(f"/proc/{server.pid}/task").iterdir())
    assert len(tasks) > 1
    assert "".join((task / "children").read_text() for task in tasks) == ""


def test_a_port_in_use_is_said_before_anything_is_loaded(server):
    port = server.target.url.rpartition(":")[2]
    done = subprocess.run([*COMMAND, "serve", "toy", "--port", port], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert f"127.0.0.1:{port}" in done.stderr
    assert "in use" in done.stderr
    assert "Loading" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("early", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_ctrl_c_ends_a_server_quietly(early):
    """While it loads, and while it waits for requests."""
    command = [*COMMAND, "serve", "toy", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stderr.readline() if early else process.stdout.readline()
            assert line.startswith("Loading toy" if early else "Serving toy at http://127.0.0.1:"), line
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    # A shell sees 130 whether the command says so or the signal itself ends it.
    assert process.returncode in ((130, -signal.SIGINT) if early else (0,)), err
    assert "Traceback" not in err + out
