"""What a metric is: a name, a unit, which way is better, what a request needs to count, and how many did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from perf.metrics.stats import Summary, summarise
from perf.schema import Chunk, Point, Record


@dataclass(frozen=True, slots=True)
class Result:
    """A metric at a point: `value` is the mean for distributions; None when no request had what it needs."""

    name: str
    unit: str
    better: str
    n: int
    value: float | None
    summary: Summary | None = None


class Metric:
    """Base of both kinds."""

    name: ClassVar[str]
    title: ClassVar[str]
    unit: ClassVar[str]
    better: ClassVar[Literal["lower", "higher"]]
    needs: ClassVar[str]  # in words: what a request or point must have to be counted

    def result(self, point: Point) -> Result:
        raise NotImplementedError


class Spread(Metric):
    """A distribution over measured requests that succeeded; a failure never has a latency."""

    def of(self, record: Record) -> Sequence[float]:
        """This request's values; empty where the metric does not apply to it."""
        raise NotImplementedError

    def values(self, point: Point) -> list[float]:
        return [v for r in point.measured if r.outcome == "ok" for v in self.of(r)]

    def result(self, point: Point) -> Result:
        values = self.values(point)
        summary = summarise(values)
        return Result(self.name, self.unit, self.better, len(values), summary.mean if summary else None, summary)


class Total(Metric):
    """One number for the whole point."""

    def count(self, point: Point) -> int:
        """How many requests or events are behind the number."""
        raise NotImplementedError

    def value(self, point: Point) -> float | None:
        raise NotImplementedError

    def result(self, point: Point) -> Result:
        n = self.count(point)
        return Result(self.name, self.unit, self.better, n, self.value(point) if n else None)


def within(value: float, limit: float) -> bool:
    """At most `limit`, to the microsecond that times are kept to: on the limit is within it."""
    return value <= limit + 1e-6


def content(record: Record) -> list[Chunk]:
    """The chunks that brought something new."""
    return [c for c in record.chunks if c.kind == "content" and c.size > 0]


def ended(record: Record) -> float:
    """When the response was complete; `Record.check` has made sure that there is such a time."""
    assert record.end is not None
    return record.end


def events(point: Point) -> list[tuple[Record, Chunk]]:
    """Content of successful requests that arrived inside the window, whenever the request was sent."""
    good = (r for r in point.records if r.outcome == "ok")
    return [(r, c) for r in good for c in content(r) if point.start <= c.t <= point.end]
