"""Where a step's packed queries lie and which stored keys each of them sees. Host arrays; no device work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(slots=True)
class Layout:
    """One entry a sequence (a row's lane), in packed order; tokens past `starts[-1]` are padding.

    Position p of sequence i is stored in page `table[seqs[i], p // page_size]` at offset `p % page_size`.
    """

    starts: np.ndarray  # [m+1] query offsets
    first: np.ndarray  # [m] absolute position of the sequence's first query
    lengths: np.ndarray  # [m] keys stored once the step has appended
    seqs: np.ndarray  # [m] rows of the block table
    table: np.ndarray  # [S, P] the resident block table; 0 is the sink page
    page_size: int
    causal: bool  # query at position p sees keys <= p; otherwise all that is stored
    scale: float

    @property
    def single(self) -> bool:
        """Whether every sequence has one query, as in decoding."""
        return int(self.starts[-1]) == len(self.first)

    @property
    def widest(self) -> int:
        """Most keys that a sequence can store."""
        return int(self.table.shape[1] * self.page_size)

    def keys(self, pool: Tensor, i: int, width: int) -> Tensor:
        """Sequence i's first `width` keys of a pool [pages, Hk, page_size, D], as [Hk, width, D].

        A view where they lie in one page, a copy otherwise.
        """
        if width <= self.page_size:
            return pool[int(self.table[self.seqs[i], 0]), :, :width]
        count = -(-width // self.page_size)
        held = pool[self.table[self.seqs[i], :count].tolist()]  # [count, Hk, page_size, D]
        return held.transpose(0, 1).flatten(1, 2)[:, :width]
