"""Where a run ran: machine, versions, code. No host names, no user names, no paths."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    "multimodal-toolkit",
    "torch",
    "transformers",
    "numpy",
    "uvicorn",
    "fastapi",
    "onnxruntime",
    "ctranslate2",
)


def machine() -> dict[str, Any]:
    """The machine that the client runs on, and, for local targets, the server too."""
    return {
        "cpu": _proc_value("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory": _proc_value("/proc/meminfo", "MemTotal"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "gpu": _output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "commit": _output("git", "rev-parse", "HEAD", cwd=Path(__file__).parent),
        "dirty": bool(_output("git", "status", "--porcelain", "-uno", cwd=Path(__file__).parent)),
    }


def redact(value: Any) -> Any:
    """A server's description without what may be secret."""
    if isinstance(value, dict):
        hidden = ("key", "token", "secret", "password", "path", "host")
        keep = {k: v for k, v in value.items() if isinstance(v, (dict, list)) or not _named(k, hidden)}
        return {k: redact(v) for k, v in keep.items()}
    return [redact(v) for v in value] if isinstance(value, list) else value


def _named(key: str, words: tuple[str, ...]) -> bool:
    return any(part in words for part in key.lower().replace("-", "_").split("_"))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _proc_value(path: str, name: str) -> str | None:
    """The first `name: value` line of a /proc file."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _output(*command: str, cwd: Path | None = None) -> str | None:
    """What a command prints; None where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.strip() if done.returncode == 0 else None
