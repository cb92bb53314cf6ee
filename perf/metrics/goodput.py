"""Goodput: requests that were completed and met every declared objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perf.metrics.base import Spread, Total, within
from perf.schema import Point, Record
from serving.errors import BadRequest, nearest


@dataclass(frozen=True)
class Goodput(Total):
    """Share of measured requests that succeeded within every limit: metric -> greatest value, in its unit.

    A request that a limit does not apply to (one chunk has no underrun) meets it. Every value of a request
    counts: an `icl` limit means that no gap is longer.
    """

    slos: Mapping[Spread, float]

    name, title, unit, better = "goodput", "Requests within every objective", "%", "higher"
    needs = "a request and an objective"

    @classmethod
    def of(cls, slos: Mapping[str, float], known: Mapping[str, Spread]) -> Goodput:
        """From names; one that is no per-request metric of the route is an error naming the nearest."""
        for name in slos:
            if name not in known:
                hint = nearest(name, known)
                raise BadRequest(f'No objective "{name}" on this route.{hint}', param="slo", code="unknown_slo")
        return cls({known[name]: limit for name, limit in slos.items()})

    def met(self, record: Record) -> bool:
        if record.outcome != "ok":
            return False
        return all(within(value, limit) for metric, limit in self.slos.items() for value in metric.of(record))

    def count(self, point: Point) -> int:
        return len(point.measured) if self.slos else 0

    def value(self, point: Point) -> float:
        return 100 * sum(map(self.met, point.measured)) / len(point.measured)
