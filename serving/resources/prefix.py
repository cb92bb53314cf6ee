"""Which full pages hold which content, so that a later request with the same beginning need not compute it again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from serving.core.contract import Items
from serving.resources.hashing import Hashed
from serving.resources.pages import Pages


def page_keys(content: Items, page_size: int, salt: str) -> Iterator[bytes]:
    """A key for each full page, made as it is asked for: the salt, and SHA-256 of its items and all before them."""
    hashed, head = Hashed.of(content), salt.encode()
    for at in range(page_size, len(hashed) + 1, page_size):
        yield head + hashed.digest(at)


@dataclass(slots=True)
class Entry:
    page: int
    parent: bytes | None
    children: set[bytes] = field(default_factory=set)


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
                if self.pages.kept[page]:  # under another key, as lanes that share one sequence would have it
                    return
                self.pages.keep(page)
                self._entries[key] = Entry(page, parent)
                if parent is not None:
                    self._entries[parent].children.add(key)
            parent = key

    def evictable(self) -> int:
        """Pages that nobody else holds. Any thread may ask."""
        return self.pages.idle

    def evict(self, count: int) -> int:
        """Free `count` pages, if as many are `evictable`, tails before what they follow; returns how many.

        What follows a page may be held by an owner who computed the page itself again. Such a page goes last and
        its followers with it, which could not be found without it.
        """
        freed = self._evict_tails(count)
        for key in list(self._entries) if freed < count else ():
            if freed < count and key in self._entries and self._idle(key):
                freed += self._cut(key)
        return freed

    def clear(self) -> None:
        """Forget everything that nobody holds."""
        self.evict(len(self._entries))

    def _idle(self, key: bytes) -> bool:
        return bool(self.pages.refs[self._entries[key].page] == 1)

    def _evict_tails(self, count: int) -> int:
        """One pass in the order of use: a page that becomes a tail on the way is older than those still to come."""
        freed = 0
        passed: set[bytes | None] = set()
        for key in list(self._entries):
            passed.add(key)
            tail: bytes | None = key
            while freed < count and tail is not None and tail in passed and self._is_tail(tail):
                parent = self._entries[tail].parent
                freed += self._cut(tail)
                tail = parent
            if freed == count:
                break
        return freed

    def _is_tail(self, key: bytes) -> bool:
        return not self._entries[key].children and self._idle(key)

    def _cut(self, key: bytes) -> int:
        """Forget an entry and all that follow it; returns how many pages that frees."""
        parent = self._entries[key].parent
        if parent is not None:
            self._entries[parent].children.remove(key)
        free, keys = self.pages.free, [key]
        while keys:
            entry = self._entries.pop(keys.pop())
            keys.extend(entry.children)
            self.pages.forget(entry.page)
        return self.pages.free - free
