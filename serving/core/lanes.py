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

    def __init__(self, name: str, threads: int | None = None) -> None:
        self._threads = threads
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self.depth = 0  # steps sent and not yet settled; kept by the engine
        self.steps: list[Any] = []

    def submit(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def call(self, job: Callable[[], None]) -> Future[None]:
        """Run a job on the lane; its end or its exception comes back."""
        future: Future[None] = Future()

        def run() -> None:
            try:
                job()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        self.submit(run)
        return future

    def close(self) -> None:
        """Finish what was submitted and stop."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while (job := self._jobs.get()) is not None:
            job()
