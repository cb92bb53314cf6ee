"""The run's clock: the event loop's own, so that a test can run a whole bench in simulated time."""

from __future__ import annotations

import asyncio


class Clock:
    """Seconds since it was made, to the microsecond; `after` is added, for a run that goes on."""

    def __init__(self, after: float = 0.0) -> None:
        self.loop = asyncio.get_running_loop()
        self.origin = self.loop.time() - after

    def __call__(self) -> float:
        return round(self.loop.time() - self.origin, 6)
