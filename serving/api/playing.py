"""What a listener of a stream would notice: first audio, a player that runs dry."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from serving.api.metrics import Metrics


@dataclass(slots=True)
class Playing:
    """Counts one stream into the metrics; `arrived` is when its request came, on the monotonic clock."""

    metrics: Metrics
    labels: tuple[str, str]
    arrived: float
    began: float | None = None
    sent: float = field(default=0.0)  # seconds of audio given to the listener

    def chunk(self, seconds: float) -> None:
        """A chunk with so many seconds of audio is about to leave."""
        now = time.monotonic()
        if self.began is None:
            self.began = now
            self.metrics.first_audio.labels(*self.labels).observe(now - self.arrived)
        elif now - self.began > self.sent:
            self.metrics.underruns.labels(*self.labels).inc()
            self.began = now - self.sent  # a player waits, then goes on
        self.sent += seconds
        self.metrics.audio_out.labels(*self.labels).inc(seconds)
