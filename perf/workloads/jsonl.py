"""One's own workload: a JSON object a line, with `text`, `audio` (a file beside it), `id` and `body`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from perf.workloads.base import Item, Workload
from perf.workloads.clips import read_clip
from serving.errors import SetupError


class Line(BaseModel):
    """A line of the file; an unknown field is an error."""

    model_config = ConfigDict(extra="forbid")

    id: str | None = None
    text: str = ""
    audio: str | None = None
    body: dict[str, Any] = {}


def jsonl(path: Path, route: str, seed: int = 0) -> Workload:
    """Items in the file's order before the seed shuffles them; `SetupError` names the line that is wrong."""
    items = []
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if text.strip():
            items.append(_item(path, number, text))
    return Workload(path.name, route, items, seed)


def _item(path: Path, number: int, text: str) -> Item:
    try:
        line = Line.model_validate_json(text)
        name = line.id or f"line-{number}"
        data, seconds = read_clip(path.parent / line.audio) if line.audio else (None, None)
    except (ValidationError, OSError) as error:
        raise SetupError(f"{path.name}, line {number}: {error}") from error
    return Item(name, line.text, data, seconds, body=line.body)
