"""Live sessions: how far output is behind input that comes at its own pace."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from perf.metrics.base import Spread, content, ended
from perf.schema import Record


class Lag(Spread):
    """How late an output is after the input that it stands for was due, outputs standing evenly over the input.

    Output j of n, counted by items at the end of its message, stands for the first j / n of the samples: it is late by
    its arrival less the time at which the piece that completes them was due.
    """

    name, title, unit, better = "lag", "Lag of output", "s", "lower"
    needs = "a session with output"

    def of(self, record: Record) -> list[float]:
        pieces, chunks = [s for s in record.sends if s.size], content(record)
        heard, said = list(accumulate(s.size for s in pieces)), list(accumulate(c.size for c in chunks))
        if not heard or not said:
            return []
        due = (pieces[bisect_left(heard, heard[-1] * upto / said[-1])].due for upto in said)
        return [chunk.t - t for chunk, t in zip(chunks, due, strict=True)]


class Final(Spread):
    """From the end of the input to the end of the session's output."""

    name, title, unit, better = "final", "End of input to end of output", "s", "lower"
    needs = "a session"

    def of(self, record: Record) -> list[float]:
        return [ended(record) - record.sends[-1].due] if record.sends else []


class FirstAfterEnd(Spread):
    """From the end of the input to the first output."""

    name, title, unit, better = "first_after", "End of input to first output", "s", "lower"
    needs = "a session with output after its input"

    def of(self, record: Record) -> list[float]:
        end = record.sends[-1].due if record.sends else None
        return [c.t - end for c in content(record)[:1] if end is not None and c.t >= end]
