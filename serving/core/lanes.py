"""Lanes: threads that run steps in order. Steps on different lanes overlap; on a GPU each lane has a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import torch


class Lane:
    """One worker thread. Jobs run in the order they were submitted; a job reports its own errors."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], None], int | None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self.depth = 0  # steps sent and not yet settled; kept by the engine
        self.steps: list[Any] = []

    def submit(self, job: Callable[[], None], threads: int | None = None) -> None:
        """Run a job with so many torch threads; None: as many as there were."""
        self._jobs.put((job, threads))

    def call(self, job: Callable[[], None], threads: int | None = None) -> Future[None]:
        """The same; its end or its exception comes back."""
        future: Future[None] = Future()

        def run() -> None:
            try:
                job()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        self.submit(run, threads)
        return future

    def close(self) -> None:
        """Finish what was submitted and stop."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (entry := self._jobs.get()) is not None:
            job, threads = entry
            if threads is not None and threads != torch.get_num_threads():
                torch.set_num_threads(threads)
            job()
