"""How a node's `launch` is run: at the exact size, or padded to a bucket in static buffers.

`eager` builds every step at its own size, and keeps the memory of the sizes used last. `static` takes the same path
as a captured step would: the smallest declared bucket that holds the batch, buffers that are reused, sinks in the
rows past the real ones. Two buffer sets a bucket let step n+1 be staged while step n runs, and there are as many more
as steps run at once.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import torch

from serving.core.contract import Node
from serving.errors import SetupError, nearest

MODES = ("eager", "static")
KEPT = 4  # exact sizes whose memory is kept


@dataclass(slots=True)
class Frame:
    """Static memory of one buffer set of one bucket."""

    rows: int
    units: int
    slots: torch.Tensor  # [rows]
    index: np.ndarray | None = None  # the slots that it holds
    busy: bool = False  # a step in flight uses it
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    hosts: dict[str, np.ndarray] = field(default_factory=dict)  # host memory of the buffers


class Runner:
    """Chooses the bucket of a step and keeps its buffers."""

    def __init__(self, node: Node, mode: str, device: str) -> None:
        if mode not in MODES:
            raise SetupError(f'Unknown capture mode "{mode}".{nearest(mode, MODES)}', param="capture.mode")
        self.buckets = tuple(node.buckets) if mode == "static" else ()
        self.uniform = node.uniform
        self.device = torch.device(device)
        self.misses = 0  # steps that no bucket held
        self._frames: OrderedDict[tuple[int, int], list[Frame]] = OrderedDict()

    def frame(self, index: np.ndarray, tokens: int, bucket: tuple[int, int] | None = None) -> Frame:
        """Memory for a step over these slots with so many tokens, slots filled in, sinks behind."""
        exact = (len(index), tokens)
        bucket = bucket or self._bucket(*exact) or exact
        frames = self._frames.get(bucket)
        if frames is None:
            frames = self._frames[bucket] = [self._make(*bucket), self._make(*bucket)]
            if len(self._frames) > len(self.buckets) + KEPT:
                self._frames.popitem(last=False)
        else:
            self._frames.move_to_end(bucket)
        frame = self._next(frames, bucket)
        if frame.index is not index:
            frame.index = index
            frame.slots[: len(index)] = torch.from_numpy(index)
            frame.slots[len(index) :] = 0
        return frame

    def _next(self, frames: list[Frame], bucket: tuple[int, int]) -> Frame:
        """The one that was used longest ago and is free, which becomes the one used last."""
        free = next((i for i, frame in enumerate(frames) if not frame.busy), None)
        frame = self._make(*bucket) if free is None else frames.pop(free)
        frames.append(frame)
        return frame

    @property
    def nbytes(self) -> int:
        """Of all buffer sets."""
        frames = [frame for pair in list(self._frames.values()) for frame in pair]
        return sum(frame.slots.nbytes + sum(one.nbytes for one in frame.buffers.values()) for frame in frames)

    def _bucket(self, rows: int, units: int) -> tuple[int, int] | None:
        for bucket in self.buckets:
            most_rows, most_units = bucket
            fits = units * most_rows == most_units * rows if self.uniform else units <= most_units
            if rows <= most_rows and fits:
                return bucket
        self.misses += bool(self.buckets)
        return None

    def _make(self, rows: int, units: int) -> Frame:
        return Frame(rows, units, torch.zeros(rows, dtype=torch.int64, device=self.device))
