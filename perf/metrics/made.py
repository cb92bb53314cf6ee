"""Things made: pictures, films, items of a model's own outputs."""

from __future__ import annotations

from perf.metrics.base import Total, ended
from perf.metrics.latency import FirstContent
from perf.schema import Point


class OutputThroughput(Total):
    """Items of output (an array's leading axis) of answers that ended in the window, a second of it."""

    name, title, unit, better = "output_throughput", "Output", "items/s", "higher"
    needs = "a complete answer with output"

    def _made(self, point: Point) -> list[int]:
        good = (r for r in point.records if r.outcome == "ok" and r.made)
        return [r.made or 0 for r in good if point.start <= ended(r) <= point.end]

    def count(self, point: Point) -> int:
        return len(self._made(point))

    def value(self, point: Point) -> float | None:
        return sum(self._made(point)) / point.seconds if point.seconds > 0 else None


class PictureThroughput(OutputThroughput):
    """Pictures of answers that ended in the window, a second of it."""

    name, title, unit = "picture_throughput", "Pictures", "pictures/s"


class FilmThroughput(OutputThroughput):
    """Films of answers that ended in the window, a second of it."""

    name, title, unit = "film_throughput", "Films", "films/s"


class FirstOutput(FirstContent):
    """To the first output that is not empty."""

    name, title = "ttfo", "Time to first output"
    needs = "output"
