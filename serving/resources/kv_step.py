"""What a port does with a planned cache: append, attend, write, read, look at scores."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
from torch import Tensor

from serving.attention import Attend, Layout, sdpa


@dataclass(slots=True)
class Pool:
    """The storage of all layers [layers, pages + 1, Hk, page_size, D] and the op that reads it."""

    k: Tensor
    v: Tensor
    table: Tensor  # [S, P] int64 block table; row 0 is the sink sequence
    attend: Attend
    stale: deque[int] = field(default_factory=deque)  # pages that hold a former owner's values
    _lock: Lock = field(default_factory=Lock)

    def scrub(self) -> None:
        """Zero stale values once, before their new owner writes: what a mask hides must still be finite.

        The engine thread adds pages while a lane is here, and may come here itself. Whoever comes waits until those
        pages are zeroed that another has taken: some may be its own.
        """
        with self._lock:
            pages = [self.stale.popleft() for _ in range(len(self.stale))]
            if pages:
                self.k[:, pages] = 0
                self.v[:, pages] = 0

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole pages; no step in flight writes to either. What is stale goes first: later it would hit copies."""
        self.scrub()
        self.k[:, targets] = self.k[:, sources]
        self.v[:, targets] = self.v[:, sources]


@dataclass(slots=True)
class KVStep:
    """One planned step over a cache: T packed tokens, `size` rows. Tensors are static buffers."""

    pool: Pool
    layout: Layout
    block: Tensor
    total: int
    size: int
    ones: bool
    scrubbed: bool = False  # before the first layer that it writes
    places: tuple[Tensor, Tensor] | None = None  # page and offset of each token, found at the first layer

    @property
    def positions(self) -> Tensor:
        """[T] absolute position of each packed token, 0 for padding."""
        return self.block[: self.total]

    @property
    def token_rows(self) -> Tensor:
        """[T] batch row of each packed token."""
        return self.block[self.total : 2 * self.total]

    @property
    def last(self) -> Tensor:
        """[size] index into T of each row's last new token in its first lane."""
        at = 3 * self.total
        return self.block[at : at + self.size]

    @property
    def last_second(self) -> Tensor:
        """[size] the same for the second lane; the first's where a row has one lane."""
        at = 3 * self.total + self.size
        return self.block[at : at + self.size]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Append k, v [T, Hk, D], then causal attention of q [T, H, D] over all that is stored, to [T, H,
        D].
        """
        self.write(layer, k, v)
        return self.read(layer, q)

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Append k, v [T, Hk, D]."""
        if not self.scrubbed:
            self.pool.scrub()
            self.scrubbed = True
        store = self._scatter if self.ones or k.device.type != "cpu" else self._copy
        store(self.pool.k[layer], k)
        store(self.pool.v[layer], v)

    def read(self, layer: int, q: Tensor) -> Tensor:
        """Attention of q [T, H, D] over what is stored, to [T, H, D]; unmasked in a step that only reads."""
        return self.pool.attend(q, self.pool.k[layer], self.pool.v[layer], self.layout)

    def scores(self, layer: int, q: Tensor, heads: list[int]) -> Tensor:
        """Scaled dot products before the softmax, [len(heads), T, L], L the longest stored; -inf where
        unseen.
        """
        return sdpa.scores(q, self.pool.k[layer], self.layout, heads)

    def _scatter(self, pool: Tensor, values: Tensor) -> None:
        if self.places is None:
            seqs, size = self.block[2 * self.total : 3 * self.total], self.layout.page_size
            page = self.positions // size
            column = page if self.layout.ring is None else self.layout.ring.column(page)
            self.places = self.pool.table[seqs, column], self.positions - page * size
        pages, offsets = self.places
        pool[pages, :, offsets] = values.to(pool.dtype)

    def _copy(self, pool: Tensor, values: Tensor) -> None:
        """By slices, which for long runs is faster than scattering token by token."""
        layout, size = self.layout, self.layout.page_size
        for i in range(len(layout.first)):
            at, stop, position = int(layout.starts[i]), int(layout.starts[i + 1]), int(layout.first[i])
            columns = np.arange(position // size, (position + stop - at - 1) // size + 1)
            columns = columns if layout.ring is None else layout.ring.column(columns)
            for page in layout.table[layout.seqs[i], columns].tolist():
                offset = position % size
                count = min(size - offset, stop - at)
                pool[page, :, offset : offset + count] = values[at : at + count].transpose(0, 1)
                at, position = at + count, position + count
