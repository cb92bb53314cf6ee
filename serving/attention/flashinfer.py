"""The FlashInfer backend, for NVIDIA GPUs: its paged prefill kernel serves decoding, prefill and reading."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from serving.attention.layout import Layout
from serving.errors import SetupError

WORKSPACE = 128 << 20  # bytes, as FlashInfer recommends

try:
    import flashinfer
except ImportError as error:
    raise SetupError(
        'The attention backend "flashinfer" needs its package: pip install "multimodal-toolkit[cuda]"',
        param="attention",
    ) from error


class FlashInfer:
    """Plans once a step, at its first layer, and runs every layer with that plan."""

    def __init__(self) -> None:
        self._wrapper: Any = None
        self._planned: Layout | None = None

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Attention of packed queries [T, H, D] over pools [pages, Hk, page_size, D]; padding rows give zeros."""
        if layout.ring is not None:
            raise SetupError('The attention backend "flashinfer" cannot read a ring; use "triton".', param="attention")
        if self._wrapper is None:
            workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=q.device)
            self._wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
        if self._planned is not layout:
            self._plan(q, k, layout)
            self._planned = layout
        count = int(layout.starts[-1])
        out = torch.zeros_like(q)
        out[:count] = self._wrapper.run(q[:count].to(k.dtype), (k, v)).to(q.dtype)
        return out

    def _plan(self, q: Tensor, k: Tensor, layout: Layout) -> None:
        queries, pages, indices, last = indices_of(layout)
        self._wrapper.plan(
            *(torch.from_numpy(part).to(q.device) for part in (queries, pages, indices, last)),
            q.shape[1],
            k.shape[1],
            q.shape[2],
            layout.page_size,
            causal=layout.causal,
            sm_scale=layout.scale,
            q_data_type=k.dtype,
        )


def indices_of(layout: Layout) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """FlashInfer's description of a step: query offsets [m+1], page offsets [m+1], pages, keys in the last page [m]."""
    counts = -(-layout.lengths // layout.page_size)
    pages = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=pages[1:])
    owner = np.repeat(np.arange(len(counts)), counts)
    column = np.arange(len(owner)) - pages[owner]
    indices = layout.table[layout.seqs[owner], column].astype(np.int32)
    last = (layout.lengths - 1) % layout.page_size + 1
    return layout.starts.astype(np.int32), pages, indices, np.where(layout.lengths > 0, last, 0).astype(np.int32)
