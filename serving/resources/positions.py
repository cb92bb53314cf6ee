"""Positions of a step's packed tokens: counters by slot, or M-RoPE with three axes and an offset by slot."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from serving.core.contract import MAIN, Batch, Content
from serving.resources.one_each import OneEach
from serving.resources.packing import lost, pack
from serving.resources.staging import Block

_numbers = itertools.count()


class Positions(OneEach):
    """A counter a slot, advanced by its steps' units; every lane of a row has the row's positions.

    With `axes` > 1 the prompt's positions are given (`set`) and later tokens count on, on all axes alike,
    from one past the highest (Qwen2-VL's M-RoPE).
    """

    partial = True  # nothing is kept of what only counts
    replays = True  # from the first token on; positions that were given come with media, which no row replays

    def __init__(self, *, slots: int, axes: int = 1, lanes: tuple[str, ...] = MAIN) -> None:
        super().__init__(slots)
        self.axes = axes
        self.lanes = {name: i for i, name in enumerate(lanes)}
        self.count = np.zeros(slots + 1, np.int64)
        self.offset = np.zeros(slots + 1, np.int64)
        self._given: dict[int, np.ndarray] = {}
        self._name = f"positions{next(_numbers)}"

    def bind(self, slot: int, owner: str) -> None:
        """The slot counts from 0 again."""
        super().bind(slot, owner)
        self.count[slot] = self.offset[slot] = 0
        self._given.pop(slot, None)

    def set(self, slot: int, given: np.ndarray) -> None:
        """The first positions of a slot, [axes, n]; what follows counts on from one past the highest."""
        given = np.asarray(given, np.int64).reshape(self.axes, -1)
        self._given[slot] = given
        self.offset[slot] = given.max(initial=-1) + 1 - given.shape[1]

    def known(self, content: Content) -> None:
        """Any beginning will do: only the count depends on it."""

    def adopt(self, owner: str, content: Content, length: int) -> None:
        """Go on after `length` units, which have been taken from a cache."""
        self.count[self._owners[owner]] = length

    def save(self, owner: str) -> tuple[int, int, np.ndarray | None]:
        """Where the owner stands; no step of it is in flight."""
        slot = self._owners[owner]
        return int(self.count[slot]), int(self.offset[slot]), self._given.get(slot)

    def restore(self, owner: str, state: tuple[int, int, np.ndarray | None]) -> None:
        """Put back what `save` returned, in the slot that the owner has now."""
        slot = self._owners[owner]
        self.count[slot], self.offset[slot], given = state
        if given is not None:
            self._given[slot] = given

    def plan(self, b: Batch, *, write: bool) -> Tensor:
        """[T], or [axes, T] where there are several; padding is 0."""
        packed = pack(b, self.lanes)
        start = self.count.take(b.index)
        if write:
            self.count[b.index] = start + b.units
        rows = packed.rows if packed.ones else packed.rows.take(packed.tokens)
        counted = start.take(rows) + packed.steps
        found: Sequence[np.ndarray] = [counted + self.offset.take(b.index).take(rows)] * self.axes
        if self._given:
            found = list(self._prompts(b, start, rows, counted, np.array(found)))
        block = Block(b, self._name, self.axes * b.total)
        for axis in found:
            block.put(axis, b.total)
        filled = block.push()
        return filled if self.axes == 1 else filled.view(self.axes, b.total)

    def _prompts(
        self, b: Batch, start: np.ndarray, rows: np.ndarray, counted: np.ndarray, found: np.ndarray
    ) -> np.ndarray:
        """Put the given positions where a row is still in its prompt."""
        for row, slot in enumerate(b.index.tolist()):
            given = self._given.get(slot)
            if given is not None and start[row] < given.shape[1]:
                at = np.flatnonzero((rows == row) & (counted < given.shape[1]))
                found[:, at] = given[:, counted[at]]
        return found

    def commit(self, b: Batch, kept: np.ndarray) -> None:
        back = lost(b, kept)
        if back is not None:
            self.count[b.index] -= back
