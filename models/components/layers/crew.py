"""Threads that share the parts of one computation, each with one torch thread.

Torch's own threads meet at the end of every operation; these meet at the end of a part, which is many operations over
what one core's cache holds.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch
from torch import Tensor

Part = TypeVar("Part")


class Workspace(threading.local):
    """Float32 buffers by name that only grow: a process that reuses them pays no page faults and fragments no heap.

    What is asked for beyond `most` elements is made anew and not kept. Every thread has its own.
    """

    def __init__(self, most: int = 1 << 24) -> None:
        self.most = most
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """A buffer of a shape; it holds what its last user left, zeros where nobody wrote."""
        size = math.prod(shape)
        if size > self.most:
            return torch.zeros(shape)
        held = self._held.get(name)
        if held is None or held.numel() < size:
            held = self._held[name] = torch.zeros(size)
        return held[:size].view(shape)


class Crew:
    """As many threads as torch would use in the thread that calls, made when they are first needed."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def each(self, job: Callable[[Part], object], parts: Sequence[Part]) -> None:
        """Run the job on every part, in any order; an exception of one is raised when all have stopped."""
        size = min(torch.get_num_threads(), len(parts))
        if size == 1:
            for part in parts:
                job(part)
            return
        queue = iter(parts)  # a thread takes the next part when it is done with one
        if self._pool is None:
            self._pool = started(torch.get_num_threads())
        workers = [self._pool.submit(_work, job, queue) for _ in range(size)]
        wait(workers)
        for done in workers:
            done.result()


def started(size: int) -> ThreadPoolExecutor:
    """A pool whose threads all run, with one torch thread each."""
    pool = ThreadPoolExecutor(size, "crew", _alone)
    here = threading.Barrier(size + 1)
    for _ in range(size):
        pool.submit(here.wait)
    here.wait()
    torch.set_num_threads(size)  # a thread that is new to torch starts with the number that was set last
    return pool


def _alone() -> None:
    torch.get_num_threads()  # makes the thread known to torch, which would else set its number later, over this one
    torch.set_num_threads(1)


def _work(job: Callable[[Part], object], queue: Iterator[Part]) -> None:
    with torch.inference_mode():
        for part in queue:
            job(part)
