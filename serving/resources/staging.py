"""Static index buffers: one int64 block a step, filled on the host and moved to the device in one copy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from serving.core.contract import Batch


class Block:
    """Columns of a batch's static int64 buffer, written in order. `push` makes them visible to the device."""

    __slots__ = ("at", "host", "pinned", "tensor")

    def __init__(self, b: Batch, name: str, width: int) -> None:
        self.tensor = b.buffer(name, (width,), torch.int64)
        self.pinned: Tensor | None = None
        if self.tensor.device.type == "cpu":
            self.host = self.tensor.numpy()
        else:
            self.pinned = torch.empty(width, dtype=torch.int64, pin_memory=True)
            self.host = self.pinned.numpy()
        self.at = 0

    def put(self, values: np.ndarray, width: int, padding: int = 0) -> None:
        """The next `width` entries: `values`, then `padding`."""
        at, count = self.at, len(values)
        self.host[at : at + count] = values
        self.at = at + width
        if count < width:
            self.host[at + count : self.at] = padding

    def push(self) -> Tensor:
        if self.pinned is not None:
            self.tensor.copy_(self.pinned, non_blocking=True)
        return self.tensor
