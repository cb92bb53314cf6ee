"""One step: a plan made into a batch, run on a lane, its outputs brought to the host."""

from __future__ import annotations

import operator
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch

from serving.capture import Frame
from serving.core.buffer import StreamBuffer, concat
from serving.core.contract import Batch, Chunk, Packed, Row
from serving.core.request import Seat
from serving.core.runtime import Cohort, NodeRun
from serving.core.scheduler import Plan
from serving.precision import entered


class Skipped(Exception):
    """A step of the same node before this one failed, so this one did not run."""


def warm(node: NodeRun) -> None:
    """Run every bucket of a node on both its buffer sets, with sinks alone."""
    empty = np.zeros(0, np.int64)
    for bucket in node.runner.buckets:
        with node.runner.warming(bucket):
            for _ in range(2):
                _warm(node, bucket, empty)


def _warm(node: NodeRun, bucket: tuple[int, int], empty: np.ndarray) -> None:
    frame = node.runner.frame(empty, 0, bucket)
    batch = Batch(0, *bucket, [], frame.slots, empty, empty, [], buffers=frame.buffers, hosts=frame.hosts)
    for label, resource, write in node.uses:
        batch.use[label] = resource.plan(batch, write=write)
    node.node.stage(batch)
    with torch.inference_mode(), entered(node.node.numerics):
        node.node.launch(batch)
    for _, resource, write in node.uses:
        if write:
            resource.commit(batch, empty)


class Step:
    """A step in flight."""

    __slots__ = (
        "batch",
        "began",
        "cohort",
        "ended",
        "error",
        "frame",
        "lane",
        "node",
        "outputs",
        "planned",
        "previous",
        "seats",
        "takes",
    )

    def __init__(self, plan: Plan, cohort: Cohort | None = None) -> None:
        self.cohort = cohort
        self.node: NodeRun = plan.group.node
        self.seats: list[Seat] = plan.seats
        self.batch: Batch
        self.frame: Frame | None = None
        self.planned = 0  # of node.uses: how many resources have planned for it
        self.takes: list[tuple[StreamBuffer, tuple[int, bool, Chunk | None]]] = []
        self.previous: Step | None = None
        self.lane: Any = None
        self.outputs: dict[str, Any] = {}
        self.error: BaseException | None = None
        self.began = self.ended = 0.0

    def assemble(self, units: list[int]) -> None:
        """Build the batch: slots, units, stream items, what each resource planned, the node's static inputs."""
        node = self.node
        rows, index, counts, lanes, tokens = self._columns(units)
        frame = self.frame = node.runner.frame(index, tokens)
        frame.busy = True
        ins, taken = self._take(units) if self.cohort is None else ({}, {})  # a repeating offer takes nothing
        memory = frame.buffers, frame.hosts
        self.batch = Batch(
            len(rows), frame.rows, frame.units, rows, frame.slots, index, counts, lanes, ins, taken, {}, *memory
        )
        for label, resource, write in node.uses:
            self.batch.use[label] = resource.plan(self.batch, write=write)
            self.planned += 1
        node.node.stage(self.batch)

    def _columns(self, units: list[int]) -> tuple[list[Row], np.ndarray, np.ndarray, list[tuple[str, ...]], int]:
        """Rows, slots, units, lanes and tokens."""
        if self.cohort is not None and self.cohort.columns is not None:
            return self.cohort.columns
        lanes = [seat.offer.lanes for seat in self.seats]  # type: ignore[union-attr]
        rows = [seat.row for seat in self.seats]
        index = np.fromiter([row.slot for row in rows], np.int64, len(rows))
        tokens = sum(map(operator.mul, units, map(len, lanes)))
        columns = rows, index, np.array(units, np.int64), lanes, tokens
        if self.cohort is not None:
            self.cohort.columns = columns
        return columns

    def _take(self, units: list[int]) -> tuple[dict[str, Packed], dict[str, list[Chunk | None]]]:
        """Take the chunks that the offers name; a split offer takes its next units only."""
        ports = {port: None for seat in self.seats for port in seat.offer.take}  # type: ignore[union-attr]
        ins: dict[str, Packed] = {}
        taken: dict[str, list[Chunk | None]] = {}
        for port in ports:
            chunks: list[Chunk | None] = []
            parts: list[Any] = []
            lengths = np.zeros(len(self.seats), np.int64)
            for i, seat in enumerate(self.seats):
                chunk = None
                if port in seat.offer.take:  # type: ignore[union-attr]
                    chunk, items = self._take_one(seat, port, units[i])
                    lengths[i] = chunk.seen - chunk.start
                    if items is not None:
                        parts.append(items)
                chunks.append(chunk)
            ins[port] = Packed(concat(parts) if parts else None, lengths)
            taken[port] = chunks
        return ins, taken

    def _take_one(self, seat: Seat, port: str, units: int) -> tuple[Chunk, Any]:
        buffer, chunk, offer = seat.inputs[port], seat.row.chunks[port], seat.offer
        assert chunk is not None
        assert offer is not None
        self.takes.append((buffer, buffer.state()))
        return buffer.take(chunk, units if units < offer.units else None)

    @property
    def repeats(self) -> bool:
        """One of its rows may be in the node's next step while this one runs."""
        return any(seat.offer.repeats for seat in self.seats)  # type: ignore[union-attr]

    def release(self) -> None:
        """Its static memory is free for another step."""
        if self.frame is not None:
            self.frame.busy = False

    def run(self, done: Callable[[Step], None]) -> None:
        """On a lane: launch, bring host ports to the host, report. Nothing is raised."""
        try:
            if self.previous is not None and self.previous.error is not None:
                raise Skipped
            self.began = perf_counter()
            with torch.inference_mode(), entered(self.node.node.numerics):
                outputs = self.node.node.launch(self.batch)
                self.outputs = {name: self._place(name, value) for name, value in outputs.items()}
        except BaseException as error:  # NOTE: a lane outlives every error; the engine decides what it means
            self.error = error
        self.previous = None
        self.ended = perf_counter()
        done(self)

    def _place(self, name: str, value: Any) -> Any:
        """A device port's tensor, cloned where a replay would overwrite it; any other tensor as a host array."""
        if isinstance(value, dict):
            return {key: self._place(name, part) for key, part in value.items()}
        if name in self.node.device_ports:
            return value.clone() if self.batch.buffers else value
        if value.dtype == torch.bfloat16:
            value = value.float()
        return value.cpu().numpy()
