"""Virtual environments of the peers, in the toolkit's cache: pinned, and made on first use."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models.weights.cache import cache_dir, published
from serving.errors import SetupError


@dataclass(frozen=True, slots=True)
class Environment:
    """Packages of a peer. `layered` puts them on top of the toolkit's own packages, so that there is one torch;
    otherwise the environment sees nothing else. `no_deps` come without what they ask for.
    """

    pins: Sequence[str]
    no_deps: Sequence[str] = ()
    layered: bool = False

    def python(self) -> Path:
        """The interpreter; makes the environment if the cache has none. Raises `SetupError`."""
        return published(cache_dir() / "peers" / self._name(), self._make) / "bin" / "python"

    def _name(self) -> str:
        # A layer is bound to what is under it.
        parts = [sorted(self.pins), sorted(self.no_deps), sys.prefix if self.layered else "", sys.version]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def _make(self, target: Path) -> None:
        _run([sys.executable, "-m", "venv", str(target)], self.pins)
        if self.layered:
            layer = next((target / "lib").glob("python*/site-packages")) / "layer.pth"
            layer.write_text("".join(f"{path}\n" for path in sys.path if path.endswith("site-packages")))
        pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
        for packages, options in ((self.pins, []), (self.no_deps, ["--no-deps"])):
            if packages:
                _run([*pip, *options, *packages], packages)


def _run(command: Sequence[str], packages: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"Cannot make the peer's environment ({', '.join(packages)}):\n{done.stderr[-1500:]}")
