"""Workloads by route: `default` for a bench that names none, `from_path` for files of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perf.workloads.base import Item, Workload
from perf.workloads.clips import clips, recordings, tones
from perf.workloads.jsonl import jsonl
from perf.workloads.text import prompts, sentences
from serving.errors import BadRequest, nearest

__all__ = ["Item", "Workload", "clips", "default", "from_path", "jsonl", "prompts", "recordings", "sentences", "tones"]

_DEFAULTS: dict[str, Callable[..., Workload]] = {"speech": sentences, "transcription": recordings, "chat": prompts}


def default(route: str, seed: int = 0) -> Workload:
    """Sentences to speak, recordings to transcribe, prompts to answer."""
    if route not in _DEFAULTS:
        raise BadRequest(f'No bench for route "{route}".{nearest(route, _DEFAULTS)}', param="route")
    return _DEFAULTS[route](seed=seed)


def from_path(path: Path, route: str, seed: int = 0) -> Workload:
    """A folder of recordings with texts beside them, or a .jsonl file."""
    return clips(path, seed) if path.is_dir() else jsonl(path, route, seed)
