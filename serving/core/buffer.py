"""The items of one stream of one piece, from the step that writes them to the step that has read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from serving.core.contract import Chunk, Edge


def concat(parts: Sequence[Any]) -> Any:
    """Join along the first axis: tensors, arrays, lists, or dicts of them."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, dict):
        return {name: concat([part[name] for part in parts]) for name in first}
    if isinstance(first, torch.Tensor):
        return torch.cat(list(parts))
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    return [item for part in parts for item in part]


def cut(values: Any, start: int, stop: int) -> Any:
    """Items [start, stop) of values, or of each value of a dict."""
    if isinstance(values, dict):
        return {name: value[start:stop] for name, value in values.items()}
    return values[start:stop]


class StreamBuffer:
    """Written by a producer, taken by a consumer in the chunks of the edge's policy.

    `take` may be undone until `drop` is called: a step that failed gives its chunks back. Items are dropped only
    when the next chunk cannot need them as context.
    """

    __slots__ = (
        "chunk",
        "edge",
        "empty",
        "ended",
        "finished",
        "fresh",
        "marks",
        "parts",
        "producer",
        "reached",
        "written",
    )

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self.parts: list[tuple[int, int, Any]] = []  # (start, stop, values)
        self.written = 0
        self.fresh = 0
        self.ended = False
        self.finished = False  # the final chunk was taken
        self.chunk: Chunk | None = None  # a chunk taken in part
        self.empty: Any = None  # no items, in the form that items have here
        self.producer: Any = None  # the seat that writes, to wake it when there is room again
        self.marks: Sequence[int] = ()  # items after which a chunk ends, ascending
        self.reached: Callable[[int], None] | None = None  # told how many items have been taken for good

    def write(self, values: Any, count: int) -> None:
        """Append `count` items."""
        if self.ended:
            raise RuntimeError(f"{self.edge.source} wrote after its stream ended")
        if self.empty is None:
            self.empty = cut(values, 0, 0)
        if count:
            self.parts.append((self.written, self.written + count, values))
            self.written += count

    def end(self) -> None:
        """No more will come."""
        self.ended = True

    @property
    def backlog(self) -> int:
        """Items written and not yet taken."""
        return self.written - self.fresh

    def full(self) -> bool:
        """The source has to wait."""
        return self.edge.limit is not None and self.backlog >= self.edge.limit

    def ready(self) -> Chunk | None:
        """The chunk that can be taken now."""
        if self.finished:
            return None
        chunk = self.chunk or self.edge.policy.next(self.fresh, self.written, self.ended)
        if chunk is not None and self.marks:
            mark = next((mark for mark in self.marks if chunk.fresh < mark < chunk.stop), None)
            return chunk if mark is None else Chunk(chunk.start, chunk.fresh, mark, mark, False)
        return chunk

    def skip(self, count: int) -> None:
        """Nobody needs the first `count` items."""
        self.fresh = count

    def take(self, chunk: Chunk, units: int | None = None) -> tuple[Chunk, Any]:
        """A chunk that `ready` gave, and its items [start, seen); with `units`, only its next so many new items."""
        if units is not None and units < chunk.stop - chunk.fresh:
            middle = chunk.fresh + units
            self.chunk = Chunk(middle, middle, chunk.stop, chunk.seen, chunk.final)
            chunk = Chunk(chunk.start, chunk.fresh, middle, middle, False)
        else:
            self.chunk = None
            self.finished = chunk.final
        self.fresh = chunk.stop
        return chunk, self._items(chunk.start, chunk.seen)

    def state(self) -> tuple[int, bool, Chunk | None]:
        """For `restore`: where the consumer stands."""
        return self.fresh, self.finished, self.chunk

    def restore(self, state: tuple[int, bool, Chunk | None]) -> None:
        """Undo every take since `state` was read."""
        self.fresh, self.finished, self.chunk = state

    def drop(self) -> None:
        """The takes were for good: forget items that no later chunk can reach."""
        if self.reached is not None:
            self.reached(self.fresh)
        if self.finished:
            self.parts.clear()
            return
        last = self.edge.policy.next(self.fresh, self.fresh, True)
        start = last.start if last else self.fresh
        while self.parts and self.parts[0][1] <= start:
            self.parts.pop(0)

    def _items(self, start: int, stop: int) -> Any:
        found = [
            cut(values, max(start - first, 0), min(stop, last) - first)
            for first, last, values in self.parts
            if first < stop and last > start
        ]
        return concat(found) if found else self.empty
