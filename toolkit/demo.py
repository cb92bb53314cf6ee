"""The demo: one server for two models; speech in, speech out and back in, word error rates, a bench, a report."""

from __future__ import annotations

import time
from pathlib import Path

from toolkit.cli import console
from toolkit.client import Client

EARS, MOUTH = "whisper_tiny_en", "kokoro"
CLIPS = 3  # transcribed one by one for people to read; the bench sends them all
SENTENCES = (
    "The train to the coast leaves at half past nine.",
    "She paid twenty dollars for the blue umbrella.",
    "Please close the window before you go to bed.",
)
WORST_WER = 0.10  # above this the demo has failed


def run(out: Path, requests: int) -> bool:
    """Run the demo; whether the words were understood."""
    from perf.launch import running, toolkit

    with running(toolkit(EARS, MOUTH), out / "logs") as server:
        url = server.target.url
        console.say(f"{EARS} and {MOUTH} are served at {url}")
        understood = [transcribe(url), speak(url, out)]
        bench(url, out, requests)
    return all(understood)


def speak(url: str, out: Path) -> bool:
    """Text to speech and back: the voice is kept as WAV files; print what was heard and the word error rate."""
    from perf.text import word_error_rate

    heard = []
    with Client(url) as client:
        for number, sentence in enumerate(SENTENCES):
            sound = client.speak(sentence, model=MOUTH)
            path = out / f"spoken-{number}.wav"
            path.write_bytes(sound)
            heard.append(client.transcribe((path.name, sound), model=EARS)["text"])
            console.write(f"{path}: {heard[-1]}")
    wer = word_error_rate(list(SENTENCES), heard)
    console.write(f"WER {wer:.1%} over {len(heard)} spoken sentences")
    return wer <= WORST_WER


def transcribe(url: str) -> bool:
    """Transcribe recordings over HTTP; print texts and the word error rate over all of them."""
    from perf.text import word_error_rate
    from perf.workloads import recordings

    said, heard = [], []
    with Client(url) as client:
        for item in recordings().items[:CLIPS]:
            began = time.monotonic()
            text = client.transcribe((f"{item.id}.wav", item.audio or b""), model=EARS)["text"]
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
        url=url, model=EARS, route="transcription", concurrency=(1, 4), requests=requests, out=out, say=console.say
    )
    for path in reports.write_all(done, out):
        console.write(str(path))
