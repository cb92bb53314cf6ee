"""How a batch's tokens are packed: row by row, a row's lanes one after another, padding at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from serving.core.contract import Batch


@dataclass(frozen=True, slots=True)
class Packing:
    """One entry a sequence (a row's lane) in packed order."""

    rows: np.ndarray  # [m] batch row
    lanes: np.ndarray  # [m] lane index
    units: np.ndarray  # [m]
    starts: np.ndarray  # [m+1] token offsets
    tokens: np.ndarray  # [T] sequence of each real token
    steps: np.ndarray  # [T] each token's index within its sequence's units
    last: np.ndarray  # [n] last token of each row's first sequence
    last_second: np.ndarray  # [n] the same of its second sequence, or of its first where it has one
    ones: bool  # every sequence has exactly one token


def pack(b: Batch, lanes: Mapping[str, int]) -> Packing:
    """The packing of a batch. Names that a pool does not have read its only lane (see `lane_of`)."""
    names = b.lanes[0] if b.n else ()
    if b.n and not np.count_nonzero(b.units != 1) and b.lanes.count(names) == b.n:
        return _decode(b.n, tuple([lane_of(lanes, name) for name in names]))
    counts = np.fromiter((len(held) for held in b.lanes), np.int64, b.n)
    rows = np.repeat(np.arange(b.n), counts)
    index = np.fromiter((lane_of(lanes, name) for held in b.lanes for name in held), np.int64, len(rows))
    heads = np.cumsum(counts) - counts
    return _ragged(rows, index, b.units[rows].astype(np.int64), heads, heads + (counts > 1))


def lost(b: Batch, kept: np.ndarray) -> np.ndarray | None:
    """[n] the units that a step's rows do not keep; None where they keep all, told at once when `kept` is `b.units`."""
    if kept is b.units:
        return None
    found = b.units - kept
    return found if np.count_nonzero(found) else None


def lane_of(lanes: Mapping[str, int], name: str) -> int:
    """A lane's index. A pool with a single lane serves every lane, as one encoder cache serves both
    branches.
    """
    if len(lanes) == 1:
        return 0
    return lanes[name]


@lru_cache(maxsize=512)
def _decode(n: int, lanes: tuple[int, ...]) -> Packing:
    """One token a sequence, the same lanes in every row: the shape of steady decoding, kept."""
    count = n * len(lanes)
    rows = np.repeat(np.arange(n), len(lanes))
    every = np.arange(count)
    index, units = np.tile(np.array(lanes, np.int64), n), np.ones(count, np.int64)
    zeros = np.zeros(count, np.int64)
    heads = every[:: len(lanes)]
    seconds = heads + (len(lanes) > 1)
    return Packing(rows, index, units, np.arange(count + 1), every, zeros, heads, seconds, True)


def _ragged(rows: np.ndarray, lanes: np.ndarray, units: np.ndarray, heads: np.ndarray, seconds: np.ndarray) -> Packing:
    starts = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(units, out=starts[1:])
    tokens = np.repeat(np.arange(len(rows)), units)
    steps = np.arange(len(tokens)) - starts[tokens]
    last = starts[1:] - 1
    return Packing(rows, lanes, units, starts, tokens, steps, last[heads], last[seconds], bool((units == 1).all()))
