"""The environment that a reference runs in, made from `env.toml` and kept for the next time.

```toml
python = "3.11"                # major.minor
base = "current"               # "current": this interpreter, if it has the pins; "layered": a virtual
environment that # sees this one's packages, with the pins on top; "empty": one that sees nothing pins =
["openai-whisper==20250625"] no_deps = ["some-package==1"]  # installed without what they ask for [stubs]
torchcodec = "imported by the video loader, which recording never calls" ```
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

BASES = ("current", "layered", "empty")
FIELDS = {"python", "base", "pins", "no_deps", "stubs"}


class EnvironmentRefused(Exception):
    """`env.toml` is not valid, or this machine cannot make what it asks for."""


@dataclass(frozen=True)
class Environment:
    """A parsed `env.toml`; pins are relative to its folder where they are paths of wheels."""

    folder: Path
    python: str
    base: str
    pins: Sequence[str] = ()
    no_deps: Sequence[str] = ()
    stubs: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Environment:
        """Parse and check an `env.toml`."""
        data: dict[str, Any] = tomllib.loads(path.read_text())
        if unknown := set(data) - FIELDS:
            raise EnvironmentRefused(f"{path}: unknown {sorted(unknown)}; valid: {', '.join(sorted(FIELDS))}")
        found = cls(path.parent, **data)
        if found.base not in BASES:
            raise EnvironmentRefused(f"{path}: base is {found.base!r}, not one of {', '.join(BASES)}")
        if bare := [name for name, reason in found.stubs.items() if not str(reason).strip()]:
            raise EnvironmentRefused(f"{path}: stubs without a reason: {', '.join(bare)}")
        return found

    @property
    def requirements(self) -> list[Requirement]:
        """The pins that name a distribution; wheels by path are left out."""
        return [Requirement(pin) for pin in [*self.pins, *self.no_deps] if not pin.endswith(".whl")]

    def interpreter(self, cache: Path) -> Path:
        """The Python to record with; makes the environment if the cache has none. `EnvironmentRefused` if it cannot."""
        if self.base == "current":
            self._check_current()
            return Path(sys.executable)
        folder = cache / self._digest()
        python = folder / "bin/python"
        if not (folder / "complete").exists():
            self._make(folder, python)
            (folder / "complete").touch()
        return python

    def _check_current(self) -> None:
        running = f"{sys.version_info.major}.{sys.version_info.minor}"
        faults = [] if self.python == running else [f"python is {running}, pinned {self.python}"]
        for requirement in self.requirements:
            try:
                held = version(requirement.name)
            except PackageNotFoundError:
                held = "not installed"
            if not requirement.specifier.contains(held.partition("+")[0], prereleases=True):
                faults.append(f"{requirement.name} is {held}, pinned {requirement.specifier}")
        if faults:
            raise EnvironmentRefused(f"{self.folder.name}: {'; '.join(faults)}")

    def _digest(self) -> str:
        parts = [self.python, self.base, list(self.pins), list(self.no_deps), sys.prefix * (self.base == "layered")]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]

    def _make(self, folder: Path, python: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        creator = shutil.which(f"python{self.python}")
        if creator is None:
            raise EnvironmentRefused(f"{self.folder.name} needs python{self.python}, which is not on the PATH")
        _run([creator, "-m", "venv", str(folder)], self.folder)
        if self.base == "layered":
            layer = next((folder / "lib").glob("python*/site-packages")) / "layer.pth"
            layer.write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
        for pins, options in ((self.pins, []), (self.no_deps, ["--no-deps"])):
            if pins:
                _run([str(python), "-m", "pip", "install", "-q", *options, *pins], self.folder)


def _run(command: Sequence[str], folder: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EnvironmentRefused(f"{' '.join(command)}:\n{done.stdout}{done.stderr}")
