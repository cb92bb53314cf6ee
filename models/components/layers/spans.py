"""Where the rows of a packed step lie and which slots of a state table they go on from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from serving.core.contract import Batch


@dataclass(frozen=True, slots=True)
class Singles:
    """Rows with one token each. `tokens` are their places in the step, in the order of `at` in the tables.

    Where the slots are neighbours `at` is a slice, so that state is read and changed where it lies.
    """

    tokens: Tensor | slice
    at: Tensor | slice

    def take(self, table: Tensor) -> Tensor:
        """[m, ...] the rows' state: a view where the slots are neighbours, else a copy."""
        return table[self.at]

    def put(self, table: Tensor, state: Tensor) -> None:
        """Store what `take` gave, changed in place."""
        if isinstance(self.at, Tensor):
            table[self.at] = state


@dataclass(frozen=True, slots=True)
class Spans:
    """A step's rows by how many tokens they have; padding belongs to none."""

    singles: Singles | None
    runs: tuple[tuple[int, int, int], ...]  # (slot, start, stop) of each row with several tokens

    @classmethod
    def of(cls, b: Batch) -> Spans:
        """The rows of a batch whose rows have one lane each."""
        starts = np.cumsum(b.units) - b.units
        one = b.units == 1
        runs = zip(b.index[~one].tolist(), starts[~one].tolist(), (starts + b.units)[~one].tolist(), strict=True)
        return cls(_singles(b.index[one], starts[one], b.slots.device), tuple(runs))

    def alone_in(self, total: int) -> int | None:
        """The slot of the only row, where it has all of a step's `total` tokens: nothing to gather, nothing to fill."""
        (slot, start, stop), *others = self.runs or ((0, 0, 0),)
        return slot if self.singles is None and not others and (start, stop) == (0, total) else None

    def each(self) -> Iterator[tuple[int, int]]:
        """(slot, token) of every token of every run, in order."""
        return ((slot, token) for slot, start, stop in self.runs for token in range(start, stop))


def _singles(slots: np.ndarray, starts: np.ndarray, device: torch.device) -> Singles | None:
    if not len(slots):
        return None
    order = np.argsort(slots)
    low, high = int(slots[order[0]]), int(slots[order[-1]])
    if high - low + 1 != len(slots):
        return Singles(torch.from_numpy(starts).to(device), torch.from_numpy(slots).to(device))
    tokens = starts[order]
    plain = bool((np.diff(tokens) == 1).all())
    where = slice(int(tokens[0]), int(tokens[0]) + len(tokens)) if plain else torch.from_numpy(tokens).to(device)
    return Singles(where, slice(low, high + 1))
