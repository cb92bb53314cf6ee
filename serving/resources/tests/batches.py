"""Batches as the engine would make them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from serving.core.contract import MAIN, Batch


def batch(
    slots: Sequence[int],
    units: Sequence[int],
    lanes: Sequence[tuple[str, ...]] | None = None,
    *,
    size: int | None = None,
    total: int | None = None,
    buffers: dict | None = None,
) -> Batch:
    """A planned step of these slots; `size` and `total` add padding."""
    n = len(slots)
    lanes = lanes or [MAIN] * n
    size = size or n
    index = np.array(slots, np.int64)
    padded = torch.zeros(size, dtype=torch.int64)
    padded[:n] = torch.from_numpy(index)
    count = np.array(units, np.int64)
    need = int(sum(u * len(names) for u, names in zip(units, lanes, strict=True)))
    made = Batch(n, size, total or need, [], padded, index, count, lanes)
    if buffers is not None:
        made.buffers = buffers
    return made
