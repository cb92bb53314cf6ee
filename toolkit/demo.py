"""The demo: a server in a process of its own, recordings through it, a word error rate, a short bench, a report."""

from __future__ import annotations

import time
from pathlib import Path

from toolkit.cli import console
from toolkit.client import Client

KEY = "whisper_tiny_en"
CLIPS = 3  # transcribed one by one for people to read; the bench sends them all
WORST_WER = 0.10  # above this the demo has failed


def run(out: Path, requests: int) -> bool:
    """Run the demo; whether the words were understood."""
    from perf.launch import running, toolkit

    with running(toolkit(KEY), out / "logs") as server:
        console.say(f"{KEY} is served at {server.target.url}")
        understood = transcribe(server.target.url)
        bench(server.target.url, out, requests)
    return understood


def transcribe(url: str) -> bool:
    """Transcribe recordings over HTTP; print texts and the word error rate over all of them."""
    from perf.text import word_error_rate
    from perf.workloads import recordings

    said, heard = [], []
    with Client(url) as client:
        for item in recordings().items[:CLIPS]:
            began = time.monotonic()
            text = client.transcribe((f"{item.id}.wav", item.audio or b""), model=KEY)["text"]
            console.write(f"{item.id} ({item.seconds:.1f} s of speech in {time.monotonic() - began:.2f} s): {text}")
            said.append(item.text)
            heard.append(text)
    wer = word_error_rate(said, heard)
    console.write(f"WER {wer:.1%} over {len(said)} recordings")
    return wer <= WORST_WER


def bench(url: str, out: Path, requests: int) -> None:
    """A short bench against the running server, and its reports."""
    import reports
    from perf.bench import run_bench

    done = run_bench(
        url=url, model=KEY, route="transcription", concurrency=(1, 4), requests=requests, out=out, say=console.say
    )
    for path in reports.write_all(done, out):
        console.write(str(path))
