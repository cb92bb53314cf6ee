"""Where a step's packed queries lie and which stored keys each of them sees. Host arrays; no device work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Integers = TypeVar("Integers", np.ndarray, Tensor)


@dataclass(frozen=True, slots=True)
class Ring:
    """A sliding window: a query sees the last `window` keys, itself included, and the first `sinks`.

    Pages of positions past the sinks are used in turn. `slack` is how many tokens steps in flight may write ahead
    of what stays, and hence how far a sequence can go back.
    """

    window: int
    sinks: int
    page_size: int
    slack: int

    @property
    def kept(self) -> int:
        """Pages of the sinks, which stay."""
        return -(-self.sinks // self.page_size)

    @property
    def turns(self) -> int:
        """Pages in the ring: enough for any window and what is written ahead of it."""
        return -(-(self.window + self.slack - 1) // self.page_size) + 1

    @property
    def pages(self) -> int:
        return self.kept + self.turns

    def column(self, page: Integers) -> Integers:
        """Column of the block table for the page of a position, position // page_size."""
        return page.clip(None, self.kept) + (page - self.kept).clip(0) % self.turns

    def seen(self, keys: np.ndarray, query: np.ndarray) -> np.ndarray:
        """Whether a query at a position may see keys at earlier positions."""
        return (keys > query - self.window) | (keys < self.sinks)


@dataclass(slots=True)
class Layout:
    """One entry a sequence (a row's lane), in packed order; tokens past `starts[-1]` are padding.

    Position p of sequence i is stored in page `table[seqs[i], column(p // page_size)]` at offset `p % page_size`.
    """

    starts: np.ndarray  # [m+1] query offsets
    first: np.ndarray  # [m] absolute position of the sequence's first query
    lengths: np.ndarray  # [m] keys stored once the step has appended
    seqs: np.ndarray  # [m] rows of the block table
    table: np.ndarray  # [S, P] the resident block table; 0 is the sink page
    page_size: int
    causal: bool  # query at position p sees keys <= p; otherwise all that is stored
    scale: float
    ring: Ring | None = None

    @property
    def single(self) -> bool:
        """Whether every sequence has one query, as in decoding."""
        return int(self.starts[-1]) == len(self.first)

    @property
    def widest(self) -> int:
        """Positions that the block table can address."""
        columns = self.table.shape[1]
        endless = self.ring is not None and columns >= self.ring.pages
        return 1 << 62 if endless else int(columns * self.page_size)

    def visible(self, low: int, high: int) -> np.ndarray:
        """Positions below `high` that some query from `low` on sees, ascending."""
        if self.ring is None:
            return np.arange(high)
        sinks = min(self.ring.sinks, high)
        return np.concatenate([np.arange(sinks), np.arange(max(sinks, low - self.ring.window + 1), high)])

    def load(self, pool: Tensor, i: int, positions: np.ndarray) -> Tensor:
        """Sequence i's keys at `visible` positions of a pool [pages, Hk, page_size, D], as [Hk, L, D].

        A view where they begin one page, a copy otherwise.
        """
        width, row = len(positions), self.table[self.seqs[i]]
        if self.ring is not None:
            pages = row[self.ring.column(positions // self.page_size)]
            found = pool[torch.from_numpy(pages), :, torch.from_numpy(positions % self.page_size)]  # [L, Hk, D]
            return found.transpose(0, 1)
        if width <= self.page_size:
            return pool[int(row[0]), :, :width]
        held = pool[row[: -(-width // self.page_size)].tolist()]  # [pages, Hk, page_size, D]
        return held.transpose(0, 1).flatten(1, 2)[:, :width]

    def mask(self, first: int, queries: int, keys: np.ndarray, device: torch.device) -> Tensor:
        """[queries, len(keys)] bool: True where the query at first, first + 1, ... sees the key."""
        at = np.arange(first, first + queries)[:, None]
        seen = keys <= at
        if self.ring is not None:
            seen &= self.ring.seen(keys, at)
        return torch.from_numpy(seen).to(device)
