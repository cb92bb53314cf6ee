"""Which full pages hold which content, so that a later request with the same beginning need not compute it again."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from serving.core.contract import Items
from serving.resources.pages import Pages


def media_key(media: np.ndarray) -> bytes:
    """What stands for a piece of media in a prefix: all its bytes, its dtype and its shape."""
    head = f"{media.dtype.str}{media.shape}".encode()
    return hashlib.sha256(head + np.ascontiguousarray(media).tobytes()).digest()


def page_keys(content: Items, page_size: int, salt: str) -> Iterator[bytes]:
    """A SHA-256 key for each full page: of its items and of everything before it; made as they are asked for.

    Items are token ids, or a `media_key` for each position that the media fills; the two cannot be confused.
    """
    parent = hashlib.sha256(salt.encode()).digest()
    for at in range(0, len(content) - page_size + 1, page_size):
        parent = hashlib.sha256(parent + encode(content[at : at + page_size])).digest()
        yield parent


def encode(items: Items) -> bytes:
    """Items as bytes: no other items have the same, and those of a whole are those of its parts."""
    if not any(isinstance(item, bytes) for item in items):
        records = np.full((len(items), 9), ord("t"), np.uint8)
        records[:, 1:] = np.asarray(items, "<i8").reshape(-1, 1).view(np.uint8)
        return records.tobytes()
    return b"".join(
        b"m" + item if isinstance(item, bytes) else b"t" + int(item).to_bytes(8, "little", signed=True)
        for item in items
    )


@dataclass(slots=True)
class Entry:
    page: int
    parent: bytes | None
    children: int = 0


class PrefixCache:
    """Pages by key, each with a reference of the cache's own; the least recently used tails go first."""

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def match(self, keys: Iterable[bytes]) -> list[int]:
        """The pages of the longest known beginning."""
        found = []
        for key in keys:
            entry = self._entries.get(key)
            if entry is None:
                break
            self._entries.move_to_end(key)
            found.append(entry.page)
        return found

    def publish(self, keys: Sequence[bytes], pages: Sequence[int]) -> None:
        """Keep these pages, one a key, in order; keys that are known keep the page they have."""
        parent: bytes | None = None
        for key, page in zip(keys, pages, strict=True):
            if key not in self._entries:
                self.pages.share([page])
                self._entries[key] = Entry(page, parent)
                if parent is not None:
                    self._entries[parent].children += 1
            parent = key

    def evictable(self) -> int:
        """Pages that nobody else holds. Any thread may ask."""
        return sum(self.pages.refs[entry.page] == 1 for entry in list(self._entries.values()))

    def evict(self, count: int) -> int:
        """Free up to `count` pages, tails before what they follow; returns how many."""
        freed = 0
        while freed < count:
            key = next((k for k, e in self._entries.items() if not e.children and self.pages.refs[e.page] == 1), None)
            if key is None:
                break
            entry = self._entries.pop(key)
            if entry.parent is not None:
                self._entries[entry.parent].children -= 1
            self.pages.drop([entry.page])
            freed += 1
        return freed

    def clear(self) -> None:
        """Forget everything that nobody holds."""
        self.evict(len(self._entries))
