"""Chunk policies: when a consumer gets how much of a stream. All pure and frozen; `Chunk` says what they return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serving.core.contract import Chunk


def _closing(fresh: int, written: int, start: int) -> Chunk:
    """The one final chunk: everything left, possibly nothing."""
    return Chunk(max(0, start), fresh, written, written, True)


@dataclass(frozen=True, slots=True)
class Whole:
    """The stream in one chunk, once it has ended."""

    def next(self, fresh: int, written: int, ended: bool) -> Chunk | None:
        return _closing(fresh, written, fresh) if ended else None


@dataclass(frozen=True, slots=True)
class Each:
    """One item a chunk as it comes; the end is an empty final chunk."""

    def next(self, fresh: int, written: int, ended: bool) -> Chunk | None:
        if fresh < written:
            return Chunk(fresh, fresh, fresh + 1, fresh + 1, False)
        return _closing(fresh, written, fresh) if ended else None


@dataclass(frozen=True, slots=True)
class Available:
    """All that has come so far in one chunk, so that bursts coalesce without loss; at most `most` items."""

    most: int = 1 << 30

    def next(self, fresh: int, written: int, ended: bool) -> Chunk | None:
        stop = min(written, fresh + self.most)
        if ended and stop == written:
            return _closing(fresh, written, fresh)
        return Chunk(fresh, fresh, stop, stop, False) if stop > fresh else None


@dataclass(frozen=True, slots=True)
class Frames:
    """Chunks of exactly `size` items, whatever the sizes they arrived in; the final one is what is left."""

    size: int

    def next(self, fresh: int, written: int, ended: bool) -> Chunk | None:
        if written - fresh >= self.size:
            return Chunk(fresh, fresh, fresh + self.size, fresh + self.size, False)
        return _closing(fresh, written, fresh) if ended else None


@dataclass(frozen=True, slots=True)
class First:
    """A first chunk of `size` items, then chunks of `then`; the final one is what is left."""

    size: int
    then: int = 1

    def next(self, fresh: int, written: int, ended: bool) -> Chunk | None:
        return Frames(self.then if fresh else self.size).next(fresh, written, ended)


@dataclass(frozen=True, slots=True)
class Ramp:
    """Chunks of sizes[0], sizes[1], ..., then `most`, each with up to `context` items before and `lookahead` after.

    A chunk is ready when its look-ahead has come too. After the end the rest comes in chunks of at most `most`;
    the last one is final and has no look-ahead.
    """

    sizes: Sequence[int]
    most: int
    context: int = 0
    lookahead: int = 0

    def next(self, fresh: int, written: int, ended: bool) -> Chunk | None:
        size = self._size(fresh)
        start = max(0, fresh - self.context)
        stop = fresh + size
        if ended and stop >= written:
            return _closing(fresh, written, start)
        if not ended and stop + self.lookahead > written:
            return None
        return Chunk(start, fresh, stop, min(stop + self.lookahead, written), False)

    def _size(self, fresh: int) -> int:
        """The size of the chunk that starts at `fresh`, which is where the sizes before it add up to."""
        for size in self.sizes:
            if fresh < size:
                return size - fresh
            fresh -= size
        return self.most - fresh % self.most


@dataclass(frozen=True, slots=True)
class Sliding:
    """Windows of `size` items every `stride`: the overlap is context. The final one is what is left."""

    size: int
    stride: int

    def next(self, fresh: int, written: int, ended: bool) -> Chunk | None:
        overlap = self.size - self.stride
        step = self.stride if fresh else self.size
        start = max(0, fresh - overlap)
        if fresh + step <= written:
            return Chunk(start, fresh, fresh + step, fresh + step, False)
        return _closing(fresh, written, start) if ended else None
