"""Whether answers under load were right, where the workload knows what is right."""

from __future__ import annotations

from perf.metrics.base import Total
from perf.schema import Point
from perf.text import word_error_rate


class WordErrorRate(Total):
    """Corpus word error rate of measured transcripts against what was spoken, in percent."""

    name, title, unit, better = "wer", "Word error rate", "%", "lower"
    needs = "a clip whose text is known"

    def _pairs(self, point: Point) -> list[tuple[str, str]]:
        good = (r for r in point.measured if r.outcome == "ok" and r.reference)
        return [(r.reference or "", r.text or "") for r in good]

    def count(self, point: Point) -> int:
        return len(self._pairs(point))

    def value(self, point: Point) -> float:
        references, heard = zip(*self._pairs(point), strict=True)
        return 100 * word_error_rate(references, heard)
