"""Runs one `record.py` in the reference's interpreter; started by `oracles.recorder.run`, with a request as
JSON.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import sys
from collections.abc import Iterable, Mapping
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from oracles import stubs
from parity.harness import numerics
from parity.harness.record import Recording

RESERVED = ("needs", "settable", "device")


class PortImported(Exception):
    """The recorder pulled in code under test: the recording would compare the port with itself."""


def load_recorder(folder: Path) -> ModuleType:
    """The family's `record.py`, imported from its file."""
    spec = importlib.util.spec_from_file_location(f"recorder_{folder.name}", folder / "record.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _is_inside(path: Path, folder: Path) -> bool:
    return folder in path.parents and "site-packages" not in path.relative_to(folder).parts


def port_modules(modules: Iterable[ModuleType], project: Path, allowed: Iterable[Path]) -> list[str]:
    """Modules that lie in the project, beside the oracles: the port's."""
    found = []
    for module in modules:
        path = Path(getattr(module, "__file__", None) or "/").resolve()
        sibling = path.parents[1] if len(path.parents) > 1 else path
        ours = _is_inside(path, project) or (sibling / "parity/harness/record.py").exists()
        if ours and not any(_is_inside(path, folder) for folder in allowed):
            found.append(module.__name__)
    return sorted(found)


def _versions(names: Iterable[str]) -> dict[str, str]:
    held = {}
    for name in names:
        try:
            held[name] = version(name)
        except PackageNotFoundError:
            held[name] = "not installed"
    return held


def recording(name: str, case: Mapping[str, Any], inputs: Mapping[str, str]) -> Recording:
    """The pen for one case: its configuration without the keys that are the recorder's own."""
    config = {key: value for key, value in case.items() if key not in RESERVED}
    given = {need: Path(inputs[need]) for need in case.get("needs", ()) if need in inputs}
    settable = {**numerics.EXACT, **case.get("settable", {})}
    return Recording(name, config, given, settable, device=case.get("device", "cpu"))


def record(request: Mapping[str, Any]) -> None:
    """Record one case into `request["out"]`."""
    folder = Path(request["folder"])
    stubs.install(request["stubs"])
    recorder = load_recorder(folder)
    pen = recording(request["case"], recorder.CASES[request["case"]], request["inputs"])
    with numerics.applied(pen.settable), torch.no_grad():
        recorder.record(pen)
    allowed = [folder.parent, *map(Path, request["allowed"])]
    if wrong := port_modules(list(sys.modules.values()), Path(request["project"]), allowed):
        raise PortImported(f"{folder.name}/record.py imported {', '.join(wrong)}")
    pen.write(
        Path(request["out"]),
        folder.name,
        references=_versions(request["references"]),
        recorder=request["recorder"],
        recorded={"date": date.today().isoformat(), "python": platform.python_version(), **request["about"]},
    )


if __name__ == "__main__":
    record(json.loads(Path(sys.argv[1]).read_text()))
