"""llama.cpp in a process of its own, on the weights of a network that is already in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save_file
from torch import Tensor

from models.weights.cache import published
from perf.peers.environments import Environment
from serving.errors import SetupError

ENVIRONMENT = Environment(("xllamacpp==2026.10.11549", "gguf==0.19.0", "numpy==2.4.6", "safetensors==0.8.0"))
SCRIPT = str(Path(__file__).with_name("llama_cpp_process.py"))
# How matrices are stored; llama.cpp computes their products with inputs in the same format, and sums in float32.
FORMATS = ("F32", "F16", "Q8_0")


def write(folder: Path, fields: Mapping[str, Any], tensors: Mapping[str, Tensor], formats: Sequence[str]) -> list[Path]:
    """A GGUF file of each format in the folder; one that is there stays. Raises `SetupError`."""
    wanted = [folder / f"{kind}.gguf" for kind in formats]
    if all(path.exists() for path in wanted):
        return wanted
    source = folder / "tensors.safetensors"
    save_file(dict(tensors), source, metadata={"fields": json.dumps(fields)})
    for kind, path in zip(formats, wanted, strict=True):
        published(path, partial(_write, source, kind))
    source.unlink()
    return wanted


def _write(source: Path, kind: str, target: Path) -> None:
    command = [str(ENVIRONMENT.python()), SCRIPT, "write", str(source), str(target), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"Cannot write {target.name}:\n{done.stderr[-1500:]}")


class Answers(NamedTuple):
    """Of prompts asked at once: seconds by the clock and of the process, and each one's tokens."""

    seconds: float
    cpu: float
    tokens: list[list[int]]


class LlamaCpp:
    """A running process. `about`: versions, instructions in use, settings."""

    def __init__(self, file: Path, **settings: Any) -> None:
        command = [str(ENVIRONMENT.python()), SCRIPT, "answer", str(file), json.dumps(settings)]
        pipe = subprocess.PIPE
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=sys.stderr, text=True, env=clean)
        self.about = self._read()

    def ask(self, prompts: Sequence[Sequence[int]], new: int) -> Answers:
        """Greedy answers of `new` tokens each: one alone, more at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": [list(prompt) for prompt in prompts], "new": new}) + "\n")
        self._process.stdin.flush()
        return Answers(**self._read())

    def close(self) -> None:
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SetupError(f"llama.cpp ended with status {self._process.wait()}; its log is above.")
        return json.loads(line)
