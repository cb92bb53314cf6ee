"""CPU time of the engine thread a step: a decode loop whose launch does nothing, with paged KV and a sampler.

    python -m perf.engine_overhead

Prints quantiles over steps at 64 and 128 rows, and the growth from 10 to 1,000 queued requests: with the process kept
on one core, and on all. Across cores the same work takes more time, for every switch between threads moves what they
share from one core's cache to the other's.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from serving.core.contract import (
    Batch,
    Card,
    Edge,
    Graph,
    LoadedModel,
    Need,
    Node,
    Offer,
    Options,
    Packed,
    Piece,
    Row,
    Settled,
    Steps,
    Task,
    Verdict,
)
from serving.core.engine import Engine, EngineSettings
from serving.core.streams import Each
from serving.resources import PagedKV, Sampler, SamplingParams, StateSlots

TOKENS = 5000  # so many that all have arrived long before the first row is done
PAGE = 16


class Loop(Node):
    """One token a step until `TOKENS`; launch returns a constant."""

    name, writes = "loop", ("kv", "sampler", "state")
    DECODE = Offer(("decode",), repeats=True)

    def __init__(self, rows: int, sampler: Sampler) -> None:
        self.sampler = sampler
        self.left = np.zeros(rows + 1, np.int64)
        self.tokens = torch.zeros(rows, dtype=torch.int64)

    def begin(self, row: Row) -> None:
        self.left[row.slot] = TOKENS
        self.sampler.set(row.slot, SamplingParams(temperature=1.0, top_k=50), row.seed)

    def offer(self, row: Row) -> Offer:
        return self.DECODE

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        return {"token": self.tokens[: b.size]}

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        self.left[b.index] -= 1
        return Settled(
            Verdict.until(self.left[b.index] <= 0), {"token": Packed(out["token"][: b.n], np.ones(b.n, np.int64))}
        )


class Empty:
    """A model that decodes nothing."""

    def __init__(self, rows: int) -> None:
        sampler = Sampler(slots=rows, vocab=1000)
        pages = -(-(TOKENS + 2) // PAGE)
        kv = PagedKV(
            layers=1, kv_heads=1, head_dim=8, page_size=PAGE, pages=rows * pages, slots=rows, max_len=TOKENS + 2
        )
        state = StateSlots(slots=rows, state={"h": ((8,), torch.float32)})
        self.modules: dict[str, torch.nn.Module] = {}
        self.graph = Graph(
            {"loop": Loop(rows, sampler)},
            (Edge("loop.token", "client.text", Each()),),
            {"kv": kv, "sampler": sampler, "state": state},
            {"all": ("loop",)},
        )

    def prepare(self, task: Task) -> None: ...

    def in_flight(self, job: None) -> int:
        return 1

    def pieces(self, job: None) -> Steps:
        yield Piece("all", {}, None, needs={"kv": Need(TOKENS + 2)})

    def present(self, port: str, items: Packed) -> Any:
        return items.values


@dataclass(frozen=True, slots=True)
class Result:
    """Microseconds of engine thread CPU a step."""

    rows: int
    queued: int
    steps: np.ndarray

    def at(self, share: float) -> float:
        return float(np.quantile(self.steps, share))


async def measure(rows: int, queued: int) -> Result:
    """Fill the batch, queue more behind it, and read the engine thread's clock at every full step."""
    model = Empty(rows)
    card = Card("empty", "empty", "", {}, "", "")
    engine = Engine([LoadedModel(card, Options(rows=rows), model)], EngineSettings(queue=1 << 20))
    await engine.start()
    marks: list[tuple[int, float]] = []
    node = model.graph.nodes["loop"]
    settle = node.settle

    def timed(b: Batch, out: Mapping[str, Any]) -> Settled:
        marks.append((b.n, engine.thread_seconds()))
        return settle(b, out)

    node.settle = timed  # type: ignore[method-assign]
    handles = [
        await engine.submit("empty", Task("generate", {}, None), request_id=str(i)) for i in range(rows + queued)
    ]
    marks.clear()  # until here, steps took arrivals in as well
    for handle in handles[:rows]:
        async for _ in handle:
            pass
    for handle in handles[rows:]:
        handle.cancel()
    await engine.stop()
    sizes, times = np.array([n for n, _ in marks]), np.array([at for _, at in marks])
    full = (sizes[1:] == rows) & (sizes[:-1] == rows)
    steps = np.diff(times)[full] * 1e6
    if len(steps) < 200:
        raise RuntimeError(f"only {len(steps)} of {len(sizes)} steps were full")
    return Result(rows, queued, steps)


def compare(title: str, turns: int = 5) -> None:
    """Take turns; of each run's quantiles print the medians."""
    runs = [(64, 10), (64, 1000), (128, 10)]
    found: dict[tuple[int, int], list[Result]] = {run: [] for run in runs}
    for _ in range(turns):
        for run in runs:
            found[run].append(asyncio.run(measure(*run)))
    shares = (0.1, 0.5, 0.9)
    table = {run: [statistics.median(one.at(share) for one in found[run]) for share in shares] for run in runs}
    print(title)
    for (rows, queued), (low, middle, high) in table.items():
        print(f"  {rows} rows, {queued} queued: {middle:.0f} us a step (p10 {low:.0f}, p90 {high:.0f})")
    growth = [after / before - 1 for before, after in zip(table[runs[0]], table[runs[1]], strict=True)]
    print(f"  growth from 10 to 1,000 queued: {growth[1]:+.1%} (of p10 {growth[0]:+.1%})")


def main() -> int:
    torch.set_num_threads(1)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    compare("on one core")
    os.sched_setaffinity(0, cores)
    compare(f"on {len(cores)} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
