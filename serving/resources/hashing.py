"""What a prompt is, as hashes of its beginnings: each position is hashed once, however often they are asked for."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, overload

import numpy as np

from serving.core.contract import Content, Items

TOKEN = 9  # bytes of a token's record


def media_key(media: np.ndarray) -> bytes:
    """What stands for a piece of media in a prefix: all its bytes, its dtype and its shape."""
    head = f"{media.dtype.str}{media.shape}".encode()
    return sha256(head + np.ascontiguousarray(media).tobytes()).digest()


def encode(items: Iterable[int | bytes]) -> tuple[bytes, np.ndarray]:
    """Items as bytes, and where each ends: no other items have the same, and those of a whole are those of its parts.

    Items are token ids, or a `media_key` for each position that the media fills; the two cannot be confused.
    """
    numbers = isinstance(items, np.ndarray) and items.dtype.kind in "iu"
    items = items if isinstance(items, np.ndarray) else list(items)
    if numbers or not any(isinstance(item, bytes) for item in items):
        records = np.full((len(items), TOKEN), ord("t"), np.uint8)
        records[:, 1:] = np.asarray(items, "<i8").reshape(-1, 1).view(np.uint8)
        return records.tobytes(), np.arange(1, len(items) + 1) * TOKEN
    parts = [
        b"m" + item if isinstance(item, bytes) else b"t" + int(item).to_bytes(8, "little", signed=True)
        for item in items
    ]
    return b"".join(parts), np.cumsum([len(part) for part in parts])


class Chain:
    """SHA-256 states at some lengths of a sequence of items; one that is asked for goes on from the one before it."""

    def __init__(self, items: Items) -> None:
        self.items = items
        self._data, ends = encode(items)
        self._ends = np.concatenate([np.zeros(1, np.int64), ends])
        self._lengths, self._states = [0], {0: sha256()}

    def digest(self, length: int) -> bytes:
        """SHA-256 of the first `length` items."""
        state = self._states.get(length)
        if state is None:
            before = self._lengths[bisect_right(self._lengths, length) - 1]
            state = self._states[length] = self._states[before].copy()
            state.update(self._data[self._ends[before] : self._ends[length]])
            insort(self._lengths, length)
        return state.digest()

    def followed_by(self, length: int, more: Sequence[int | bytes]) -> Chain:
        """The first `length` items and more, with the states that are known of them."""
        found, (data, ends) = object.__new__(Chain), encode(more)
        found.items = [*self.items[:length], *more]
        found._data = self._data[: self._ends[length]] + data
        found._ends = np.concatenate([self._ends[: length + 1], self._ends[length] + ends])
        found._lengths = self._lengths[: bisect_right(self._lengths, length)]
        found._states = {at: self._states[at] for at in found._lengths}
        return found


class Hashed(Sequence[int | bytes]):
    """A lane's items with the hashes of their beginnings, which `hashed[:n]` shares."""

    def __init__(self, chain: Chain, length: int) -> None:
        self._chain, self._length = chain, length

    @classmethod
    def of(cls, items: Items) -> Hashed:
        """Itself, if it is one."""
        return items if isinstance(items, Hashed) else cls(Chain(items), len(items))

    def digest(self, length: int) -> bytes:
        """SHA-256 of the first `length` items: of all that is in them and of their order."""
        return self._chain.digest(length)

    def followed_by(self, more: Sequence[int | bytes]) -> Hashed:
        """These items and more; what is known of these is not hashed again."""
        return Hashed(self._chain.followed_by(self._length, more), self._length + len(more))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int | bytes]:
        return iter(self._chain.items[: self._length])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._chain.items[: self._length], dtype)

    @overload
    def __getitem__(self, at: int) -> int | bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int | bytes]: ...
    def __getitem__(self, at: int | slice) -> int | bytes | Sequence[int | bytes]:
        if isinstance(at, slice):
            start, stop, step = at.indices(self._length)
            if (start, step) == (0, 1):
                return Hashed(self._chain, stop)
        found: Any = self._chain.items[: self._length][at]
        return found


def hashed(content: Content, every: int) -> Content:
    """The same content with its beginnings hashed at all multiples of `every`; where it is 0, as they are needed."""
    found = {lane: Hashed.of(items) for lane, items in content.items()}
    for items in found.values():
        for length in range(every, len(items) + 1, every) if every else ():
            items.digest(length)
    return found
