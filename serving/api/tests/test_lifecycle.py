"""A server as a process: it announces itself when ready, drains on the first signal, stops on the second."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest

PATH = "/v1/audio/transcriptions"


@contextlib.contextmanager
def process(*arguments: str):
    command = [sys.executable, "-m", "serving.api.tests.served", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def ask(url, tone, results):
    form = {"files": {"file": ("a.wav", tone)}, "data": {"model": "ears"}}
    try:
        results.append(httpx.post(url + PATH, timeout=30, **form).json()["text"])
    except (httpx.TransportError, ValueError) as error:
        results.append(error)


@pytest.mark.parametrize(("signals", "finishes"), [([signal.SIGTERM], True), ([signal.SIGTERM, signal.SIGINT], False)])
def test_the_first_signal_drains_and_the_second_stops(tone, signals, finishes):
    with process("1.5" if finishes else "30", "20") as running:
        url = running.stdout.readline().strip()
        assert httpx.get(url + "/health/ready").status_code == 200
        results: list = []
        request = threading.Thread(target=ask, args=(url, tone, results))
        request.start()
        time.sleep(0.5)
        for one in signals:
            running.send_signal(one)
            time.sleep(0.3)
        if finishes:
            with pytest.raises(httpx.ConnectError):
                httpx.get(url + "/health/ready")
        code = running.wait(10)
        request.join(10)
        output = running.stdout.read()
    assert (code == 0) == finishes
    assert ("drained" in output) == finishes
    assert (results == ["HiHi"]) == finishes


def test_draining_gives_up_after_its_time(tone):
    with process("60", "1") as running:
        url = running.stdout.readline().strip()
        results: list = []
        request = threading.Thread(target=ask, args=(url, tone, results))
        request.start()
        time.sleep(0.5)
        running.send_signal(signal.SIGTERM)
        running.wait(10)
        request.join(10)
    assert "HiHi" not in results


def test_an_engine_that_does_not_start_ends_the_process_without_an_address():
    with process("0", "1", "fail") as running:
        output, errors = running.communicate(timeout=20)
        assert running.returncode == 1
    assert output == ""
    assert "no such device" in errors
