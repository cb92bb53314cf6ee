"""The demo: a server in a process of its own, a recording through it, a word error rate, a short bench, a report."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.errors import SetupError
from toolkit.cli import console
from toolkit.client import Client

KEY = "whisper_tiny_en"
RECORDINGS = Path(__file__).parent / "recordings"
WORST_WER = 0.10  # above this the demo has failed
ADDRESS = re.compile(r"https?://\S+")


def run(out: Path, requests: int) -> bool:
    """Run the demo; whether the words were understood."""
    with served([KEY]) as url:
        understood = transcribe(url)
        bench(url, out, requests)
    return understood


@contextmanager
def served(keys: list[str], *options: str) -> Iterator[str]:
    """A server of these keys on a free port, in a process of its own; its address, once it is ready."""
    command = [sys.executable, "-m", "toolkit.cli.main", "serve", *keys, "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield _address(process)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := ADDRESS.search(line):
            return found.group()
    raise SetupError(f"The server did not start (exit code {process.wait()}).")


def transcribe(url: str) -> bool:
    """Transcribe every packaged recording; print texts and the word error rate over all of them."""
    import jiwer

    said, heard = [], []
    with Client(url) as client:
        for recording in sorted(RECORDINGS.glob("*.flac")):
            began = time.monotonic()
            text = client.transcribe(recording, model=KEY)["text"]
            seconds = time.monotonic() - began
            said.append(recording.with_suffix(".txt").read_text(encoding="utf-8").strip())
            heard.append(text)
            console.write(f"{recording.name} ({seconds:.2f} s): {text}")
    if not said:
        raise SetupError(f"No recording in {RECORDINGS}.")
    wer = jiwer.wer([plain(text) for text in said], [plain(text) for text in heard])
    console.write(f"WER {wer:.1%}")
    return bool(wer <= WORST_WER)


def plain(text: str) -> str:
    """Lower case, words only: what a word error rate compares."""
    return " ".join(re.sub(r"[^\w' ]+", " ", text.lower()).split())


def bench(url: str, out: Path, requests: int) -> None:
    """A short bench against the running server, and its reports."""
    from perf.bench import run_bench

    import reports

    run = run_bench(url=url, model=KEY, route="transcribe", concurrency=(1, 4), requests=requests, out=out)
    for path in reports.write_all(run, out):
        console.write(str(path))
