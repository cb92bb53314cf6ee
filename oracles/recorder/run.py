"""Record cases: the reference in its own environment, one process a case, into a folder of versions."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oracles.recorder.environment import Environment
from oracles.recorder.repository import commit, is_dirty
from parity.harness.cases import Manifest
from parity.harness.sources import recorder_hash

PACKAGES = Path(__file__).resolve().parents[2]
RECORDINGS, ENVIRONMENTS = ".recordings", ".environments"

# The packages of this repository are imported by path and the path then removed, because a reference may
# well have a
# `models` package of its own.
START = """
import sys
sys.path.insert(0, {packages!r})
import oracles.recorder.worker as worker
sys.path.remove({packages!r})
import json, pathlib
worker.record(json.loads(pathlib.Path(sys.argv[1]).read_text()))
"""


class RecordingFailed(Exception):
    """The recorder did not finish; the message has the end of what it said."""


@dataclass(frozen=True)
class Recorded:
    """A fresh version of a case."""

    family: str
    case: str
    folder: Path
    manifest: Manifest

    @property
    def version(self) -> str:
        return self.manifest.version


def _assigned(folder: Path, name: str) -> ast.expr | None:
    """What a recorder assigns to a name at its top level."""
    for node in ast.parse((folder / "record.py").read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return node.value
    return None


def cases_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The `CASES` of a recorder, read without importing it: it is a literal."""
    value = _assigned(folder, "CASES")
    if value is None:
        raise ValueError(f"{folder}/record.py has no CASES = {{...}} at its top level")
    cases: dict[str, dict[str, Any]] = ast.literal_eval(value)
    return cases


def families(root: Path) -> list[str]:
    """The families below an oracles folder whose `record.py` has cases."""
    recorders = [path.parent for path in sorted(root.glob("*/record.py"))]
    return [folder.name for folder in recorders if _assigned(folder, "CASES") is not None]


def hidden(root: Path, name: str) -> Path:
    """A folder of the oracles that version control does not see."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    return folder


def _request(folder: Path, case: str, out: Path, inputs: Mapping[str, Path], spec: Environment) -> dict[str, Any]:
    root = folder.parent
    given = "".join(f" --input {name}={path.name}" for name, path in sorted(inputs.items()))
    about = {
        "command": f"toolkit oracle record {folder.name}/{case}{given}",
        "commit": commit(root),
        "dirty": is_dirty(root),
    }
    return {
        "folder": str(folder),
        "case": case,
        "out": str(out),
        "inputs": {name: str(Path(path).resolve()) for name, path in inputs.items()},
        "stubs": dict(spec.stubs),
        "references": [requirement.name for requirement in spec.requirements],
        "recorder": recorder_hash(folder),
        "project": str(root.parent),
        "allowed": [str(PACKAGES / "parity"), str(PACKAGES / "oracles")],
        "about": about,
    }


def launch(python: Path, request: Mapping[str, Any]) -> None:
    """Run the worker with an interpreter, in an empty folder and without this process's search path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"  # a recording leaves nothing beside its recorder
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "request.json"
        path.write_text(json.dumps(request))
        command = [str(python), "-c", START.format(packages=str(PACKAGES)), str(path)]
        done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = f"{done.stdout[-2000:]}{done.stderr[-4000:]}"
        raise RecordingFailed(f"{Path(request['folder']).name}/{request['case']}:\n{said}")


def record_into(folder: Path, case: str, out: Path, inputs: Mapping[str, Path]) -> Recorded:
    """Record one case of a family into a folder. Raises `EnvironmentRefused` or `RecordingFailed`."""
    spec = Environment.read(folder / "env.toml")
    python = spec.interpreter(hidden(folder.parent, ENVIRONMENTS))
    needs = cases_of(folder)[case].get("needs", ())
    given = {name: path for name, path in inputs.items() if name in needs}
    launch(python, _request(folder, case, out, given, spec))
    return Recorded(folder.name, case, out, Manifest.read(out / "manifest.json"))
