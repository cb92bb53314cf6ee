"""Sequences over a pool of pages: a resident block table, lengths, and pages that several sequences may share.

Pages at and after a sequence's next position are its own, so that a step may write there: shared pages are full ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from serving.attention import Ring
from serving.errors import Overloaded
from serving.resources.pages import Pages

Copy = Callable[[list[int], list[int]], None]


class Sequences:
    """`count` sequences of at most `max_len` tokens; sequence 0 is the sink. `table` [S, P] lives on the device.

    With a `ring`, a sequence that holds the ring's pages has room without end: old positions make way for new ones.
    """

    def __init__(self, pages: Pages, page_size: int, count: int, max_len: int, ring: Ring | None, device: str) -> None:
        self.pages, self.page_size, self.max_len, self.ring = pages, page_size, max_len, ring
        self.columns = -(-max_len // page_size)
        if ring is not None:
            self.columns = min(self.columns, ring.pages)
        self.device = torch.zeros((count + 1, self.columns), dtype=torch.int64, device=device)
        self.table = self.device.cpu().numpy()  # shares memory on a CPU
        self.length = np.zeros(count + 1, np.int64)
        self.room = np.zeros(count + 1, np.int64)  # tokens that the pages held are enough for
        self.held = np.zeros(count + 1, np.int64)  # pages
        self.spare = deque(range(1, count + 1))

    def pages_for(self, tokens: int) -> int:
        """Pages for this many tokens in a sequence."""
        return min(-(-tokens // self.page_size), self.columns)

    def missing(self, seq: int, units: int) -> int | None:
        """Pages that a sequence lacks for `units` more tokens; None: it may not grow so long."""
        total = int(self.length[seq]) + units
        return None if total > self.max_len else max(0, self.pages_for(total) - int(self.held[seq]))

    def grow(self, seq: int, count: int) -> list[int]:
        """Take `count` more pages; returns them."""
        held, taken = int(self.held[seq]), self.pages.take(count)
        self.table[seq, held : held + count] = taken
        self._set_held(seq, held + count)
        return taken

    def _set_held(self, seq: int, count: int) -> None:
        self.held[seq] = count
        whole = count == self.columns
        self.room[seq] = self.max_len if whole else count * self.page_size
        self.show(seq)

    def show(self, seq: int) -> None:
        """Let the device see a changed row of the block table."""
        if self.device.device.type != "cpu":
            self.device[seq].copy_(torch.from_numpy(self.table[seq]))

    def drop(self, seq: int) -> None:
        """Give back everything the sequence has, and the sequence."""
        self.pages.drop(self.table[seq, : self.held[seq]].tolist())
        self.table[seq] = 0
        self.length[seq] = 0
        self._set_held(seq, 0)
        self.spare.append(seq)

    def adopt(self, seq: int, pages: list[int]) -> None:
        """Begin an empty sequence with shared full pages; it gives back its own ones there."""
        count = len(pages)
        self.pages.share(pages)
        self.pages.drop(self.table[seq, :count].tolist())
        self.table[seq, :count] = pages
        self.show(seq)
        self.length[seq] = count * self.page_size

    def fork(self, source: int, target: int, copy: Copy) -> None:
        """Let an empty sequence go on where another is: full pages are shared, the page being filled is copied.

        Pages of a ring are copied too: they will be written over.
        """
        length = int(self.length[source])
        used = self.pages_for(length)
        if int(self.length[target]) or int(self.held[target]) < used:
            raise ValueError("a fork needs an empty target with room for what the source has stored")
        full = 0 if self.ring is not None else length // self.page_size
        self.adopt(target, self.table[source, :full].tolist())
        if used > full:
            copy(self.table[source, full:used].tolist(), self.table[target, full:used].tolist())
        self.length[target] = length

    def truncate(self, seq: int, length: int, copy: Copy) -> None:
        """Go back to `length`; pages that will be written again and are shared are replaced by copies."""
        gone = int(self.length[seq]) - length
        if gone <= 0:
            return
        if self.ring is not None and gone > self.ring.slack:
            raise ValueError(f"a window cannot go back {gone} tokens: what it saw then is gone")
        shared = [at for at in range(length // self.page_size, int(self.held[seq])) if self._shared(seq, at)]
        if len(shared) > self.pages.free:
            raise Overloaded("no pages left to write on after a fork")
        self.length[seq] = length
        if shared:
            old, fresh = self.table[seq, shared].tolist(), self.pages.take(len(shared))
            copy(old, fresh)
            self.table[seq, shared] = fresh
            self.pages.drop(old)
            self.show(seq)

    def _shared(self, seq: int, column: int) -> bool:
        return bool(self.pages.refs[self.table[seq, column]] > 1)

    def places(self, seq: int) -> tuple[Tensor, Tensor]:
        """Page and offset of every position, in order; of a ring, of those that a later query may see."""
        length = int(self.length[seq])
        positions = np.arange(length)
        if self.ring is not None:
            positions = positions[self.ring.seen(positions, np.array(length))]
        pages = positions // self.page_size
        columns = pages if self.ring is None else self.ring.column(pages)
        return torch.from_numpy(self.table[seq, columns]), torch.from_numpy(positions % self.page_size)
