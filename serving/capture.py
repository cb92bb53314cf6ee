"""How a node's `launch` is run: at the exact size, or padded to a bucket in static buffers.

`eager` builds every step at its own size, and keeps the memory of the sizes used last. `static` takes the same path
as a captured step would: the smallest declared bucket that holds the batch, buffers that are reused, sinks in the
rows past the real ones. Two buffer sets a bucket let step n+1 be staged while step n runs, and there are as many more
as steps run at once. `compiled` is `static` with the functions that a node names compiled (see `serving.compiled`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from serving import compiled
from serving.core.contract import Node, Options
from serving.errors import SetupError, nearest

log = logging.getLogger("toolkit.capture")
MODES = ("eager", "static", "compiled")
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


def runners(key: str, nodes: Mapping[str, Node], options: Options) -> dict[str, Runner]:
    """A runner for each node, or `SetupError` where the mode cannot be had."""
    if options.capture not in MODES:
        raise SetupError(f'Unknown capture mode "{options.capture}".{nearest(options.capture, MODES)}', param="capture")
    if options.capture == "compiled":
        compiled.check(key, list(nodes.values()), options.numerics, options.device)
    return {name: Runner(node, options) for name, node in nodes.items()}


class Runner:
    """Chooses the bucket of a step and keeps its buffers."""

    def __init__(self, node: Node, options: Options) -> None:
        self.node, self.options = node, options
        self.buckets = () if options.capture == "eager" else tuple(node.buckets)
        self.uniform = node.uniform
        self.device = torch.device(options.device)
        self.misses = 0  # steps that no bucket held
        self.compiled: dict[tuple[int, int], float] = {}  # bucket -> seconds that its compilation took
        self._functions: list[compiled.Compiled] | None = None
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

    @contextmanager
    def warming(self, bucket: tuple[int, int]) -> Iterator[None]:
        """Around the steps that warm a bucket up: what the node names is compiled in them."""
        if self.options.capture != "compiled" or not self.node.compiles:
            yield
            return
        if self._functions is None:
            self._functions = compiled.install(self.node, self.options.allow_eager)
        before = sum(function.seconds for function in self._functions)
        for function in self._functions:
            function.warming = True
        try:
            yield
        finally:
            for function in self._functions:
                function.warming = False
        self.compiled[bucket] = sum(function.seconds for function in self._functions) - before
        log.info("%s: bucket %dx%d compiled in %.1f s", self.node.name, *bucket, self.compiled[bucket])

    def compilations(self) -> dict[str, Any]:
        """Seconds that each bucket took, and calls since then with shapes that were not compiled."""
        seconds = {f"{rows}x{units}": round(spent, 3) for (rows, units), spent in self.compiled.items()}
        return {"seconds": seconds, "uncompiled": sum(function.misses for function in self._functions or ())}

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
