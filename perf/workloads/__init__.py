"""Workloads by route: `default` for a bench that names none, `from_path` for one's own files, `named` for others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perf.workloads.base import Item, Workload
from perf.workloads.clips import clips, recordings, tones
from perf.workloads.jsonl import jsonl
from perf.workloads.live import sessions, spoken
from perf.workloads.media import films, pictures, scenes
from perf.workloads.mixed import mixed
from perf.workloads.named import named
from perf.workloads.text import prompts, sentences
from serving.errors import BadRequest, nearest

__all__ = [
    "Item",
    "Workload",
    "chosen",
    "clips",
    "default",
    "from_path",
    "jsonl",
    "mixed",
    "named",
    "prompts",
    "recordings",
    "sentences",
    "tones",
]

_DEFAULTS: dict[str, Callable[..., Workload]] = {
    "speech": sentences,
    "transcription": recordings,
    "chat": prompts,
    "image": pictures,
    "video": films,
    "generate": scenes,
    "live": sessions,
    "realtime": spoken,
}


def default(route: str, seed: int = 0) -> Workload:
    """What a route is sent where nothing is named."""
    if route not in _DEFAULTS:
        raise BadRequest(f'No bench for route "{route}".{nearest(route, _DEFAULTS)}', param="route")
    return _DEFAULTS[route](seed=seed)


def from_path(path: Path, route: str, seed: int = 0) -> Workload:
    """A folder of recordings with texts beside them, or a .jsonl file."""
    return clips(path, seed) if path.is_dir() else jsonl(path, route, seed)


def chosen(what: str | Path | None, route: str, seed: int = 0) -> Workload:
    """The route's default, a path, or a name with parameters. Raises `BadRequest` where it is for another route."""
    if what is None:
        return default(route, seed)
    if Path(what).exists() or str(what).endswith(".jsonl"):
        return from_path(Path(what), route, seed)
    found = named(str(what), seed)
    if found.route != route:
        raise BadRequest(f"The workload {what} is for {found.route}, not for {route}.", param="workload")
    return found
