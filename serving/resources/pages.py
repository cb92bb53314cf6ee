"""A pool of numbered pages with reference counts. Page 0 is the sink and is never handed out."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import numpy as np


class Pages:
    """Lowest numbers go out first, so that the pages of rows that live together lie together.

    A page may be kept: then one of its references is the prefix cache's.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.refs = np.zeros(count + 1, np.int32)
        self.kept = np.zeros(count + 1, bool)
        self.idle = 0  # kept pages that nobody else holds
        self._free = list(range(1, count + 1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` pages with one reference each. The caller has checked `free`."""
        pages = [heapq.heappop(self._free) for _ in range(count)]
        self.refs[pages] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more reference to each."""
        for page in pages:
            if self.refs[page] < 1:
                raise ValueError(f"page {page} is free and cannot be shared")
            self.idle -= self._is_idle(page)
            self.refs[page] += 1

    def drop(self, pages: Iterable[int]) -> None:
        """One reference less each; a page without references is free again."""
        for page in pages:
            if self.refs[page] < 1:
                raise ValueError(f"page {page} was given back twice")
            self.refs[page] -= 1
            self.idle += self._is_idle(page)
            if not self.refs[page]:
                heapq.heappush(self._free, page)

    def keep(self, page: int) -> None:
        """Let a page that someone holds outlive them."""
        self.share([page])
        self.kept[page] = True

    def forget(self, page: int) -> None:
        """Keep the page no longer."""
        self.idle -= self._is_idle(page)
        self.kept[page] = False
        self.drop([page])

    def _is_idle(self, page: int) -> bool:
        return bool(self.kept[page] and self.refs[page] == 1)
