"""Static index buffers: one int64 block a step, filled on the host and moved to the device in one copy."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from serving.core.contract import Batch


class Block:
    """Columns of a batch's static int64 buffer, written in order. `push` makes them visible to the device."""

    __slots__ = ("apart", "at", "host", "tensor")

    def __init__(self, b: Batch, name: str, width: int) -> None:
        self.tensor = b.buffer(name, (width,), torch.int64)
        self.host = b.host(name)
        self.apart = self.tensor.device.type != "cpu"  # the device has memory of its own
        self.at = 0

    def put(self, values: np.ndarray, width: int, padding: int = 0) -> None:
        """The next `width` entries: `values`, then `padding`."""
        at, count = self.at, len(values)
        self.host[at : at + count] = values
        self.at = at + width
        if count < width:
            self.host[at + count : self.at] = padding

    def push(self) -> Tensor:
        if self.apart:
            self.tensor.copy_(torch.from_numpy(self.host), non_blocking=True)
        return self.tensor
