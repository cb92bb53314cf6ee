"""Counts and rates of a point. Every request that was sent is somewhere: sent = ok + failed + dropped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from perf.metrics.base import Total, ended
from perf.schema import Point


@dataclass(frozen=True, slots=True)
class Counts:
    """Measured requests by outcome."""

    sent: int
    ok: int
    failed: int
    dropped: int

    def __post_init__(self) -> None:
        if self.sent != self.ok + self.failed + self.dropped:
            raise ValueError(f"requests lost: {self}")


def counts(point: Point) -> Counts:
    """Where each measured request ended."""
    by = Counter(r.outcome for r in point.measured)
    return Counts(len(point.measured), by["ok"], by["failed"], by["dropped"])


def failures(point: Point) -> Counter[str]:
    """Reasons, with status where there is one, of measured requests that did not succeed."""
    found = (r.failure for r in point.measured if r.failure)
    return Counter(f"{f.kind} {f.status}" if f.status else f.kind for f in found)


def distinct(point: Point) -> int:
    """How many different requests were among those measured."""
    return len({r.item for r in point.measured})


class SuccessRate(Total):
    """Share of measured requests with a complete answer; failed and dropped ones are in the denominator."""

    name, title, unit, better = "success", "Success rate", "%", "higher"
    needs = "a request"

    def count(self, point: Point) -> int:
        return len(point.measured)

    def value(self, point: Point) -> float:
        return 100 * counts(point).ok / counts(point).sent


class RequestThroughput(Total):
    """Complete answers a second of the window, by when they ended."""

    name, title, unit, better = "request_throughput", "Request throughput", "req/s", "higher"
    needs = "a complete response"

    def count(self, point: Point) -> int:
        good = (r for r in point.records if r.outcome == "ok")
        return sum(point.start <= ended(r) <= point.end for r in good)

    def value(self, point: Point) -> float | None:
        return self.count(point) / point.seconds if point.seconds > 0 else None


class TokenThroughput(Total):
    """Tokens of answers that ended in the window, a second of it; by the server's count."""

    name, title, unit, better = "token_throughput", "Token throughput", "tok/s", "higher"
    needs = "tokens, counted by the server"

    def _tokens(self, point: Point) -> list[int]:
        good = (r for r in point.records if r.outcome == "ok" and r.tokens)
        return [r.tokens or 0 for r in good if point.start <= ended(r) <= point.end]

    def count(self, point: Point) -> int:
        return len(self._tokens(point))

    def value(self, point: Point) -> float | None:
        return sum(self._tokens(point)) / point.seconds if point.seconds > 0 else None


class OfferedRate(Total):
    """Requests that the load asked for, a second of the time in which they were sent."""

    name, title, unit, better = "offered", "Offered rate", "req/s", "higher"
    needs = "two requests"

    def count(self, point: Point) -> int:
        return len(point.measured) if len(point.measured) > 1 else 0

    def value(self, point: Point) -> float | None:
        times = sorted(r.scheduled for r in point.measured)
        return (len(times) - 1) / (times[-1] - times[0]) if times[-1] > times[0] else None


class AchievedRate(OfferedRate):
    """Requests that were in fact sent, a second."""

    name, title = "achieved", "Achieved rate"

    def value(self, point: Point) -> float | None:
        times = sorted(r.sent for r in point.measured)
        return (len(times) - 1) / (times[-1] - times[0]) if times[-1] > times[0] else None
