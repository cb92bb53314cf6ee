"""Where a tensor begins in memory, which some CPU kernels let decide the order of their sums."""

from __future__ import annotations

import torch
from torch import Tensor

LINE = 64  # bytes: a cache line, and where torch's own allocations begin


def aligned(x: Tensor) -> Tensor:
    """The tensor, copied if it does not begin as an allocation of its own would; what is compiled copies nothing."""
    if torch.compiler.is_compiling():
        return x
    return x.clone() if x.data_ptr() % LINE else x
