"""Audio: real-time factor, throughput, continuity. Durations come from the rate that a response declared."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

from perf.metrics.base import Spread, Total, content, ended, events, within
from perf.schema import Point, Record


def audio_seconds(record: Record) -> float:
    """Seconds of audio made, or else of audio understood; chunks that repeat the one before do not count."""
    if record.sound:
        return sum(c.size for c in content(record)) / record.sound.rate
    return record.input_seconds or 0.0


class RealTimeFactor(Spread):
    """End-to-end time over seconds of audio, the wait for the first packet included."""

    name, title, unit, better = "rtf", "Real-time factor", "x", "lower"
    needs = "audio in or out"

    def of(self, record: Record) -> list[float]:
        seconds = audio_seconds(record)
        return [(ended(record) - record.sent) / seconds] if seconds else []


class GenerationFactor(Spread):
    """Real-time factor of the stream after its first chunk: no queueing, no first packet."""

    name, title, unit, better = "rtf_gen", "Real-time factor after the first chunk", "x", "lower"
    needs = "two audio chunks"

    def of(self, record: Record) -> list[float]:
        chunks = content(record)
        if not record.sound or len(chunks) < 2:
            return []
        return [(chunks[-1].t - chunks[0].t) * record.sound.rate / sum(c.size for c in chunks[1:])]


class FirstShare(Spread):
    """Time to the first audio, as a share of the whole response's time."""

    name, title, unit, better = "first_share", "First audio's share of the time", "%", "lower"
    needs = "two audio chunks"

    def of(self, record: Record) -> list[float]:
        chunks = content(record)
        if not record.sound or len(chunks) < 2:
            return []
        return [100 * (chunks[0].t - record.sent) / (ended(record) - record.sent)]


class AudioDuration(Spread):
    """Seconds of audio in a request."""

    name, title, unit, better = "audio_s", "Audio in a request", "s", "higher"
    needs = "audio in or out"

    def of(self, record: Record) -> list[float]:
        seconds = audio_seconds(record)
        return [seconds] if seconds else []


class Underrun(Spread):
    """A player starts at the first chunk and never waits: how late, at worst, a later chunk comes.

    Equally: the least that a player would have had to buffer to play without a gap. One chunk has none.
    """

    name, title, unit, better = "underrun", "Worst underrun", "s", "lower"
    needs = "two audio chunks"

    def of(self, record: Record) -> list[float]:
        chunks = content(record)
        if not record.sound or len(chunks) < 2:
            return []
        worst, due = 0.0, chunks[0].t
        for before, chunk in pairwise(chunks):
            due += before.size / record.sound.rate
            worst = max(worst, chunk.t - due)
        return [worst]


class Continuity(Total):
    """Share of streams of several chunks whose worst underrun is at most `limit_ms`."""

    unit, better = "%", "higher"
    needs = "two audio chunks"
    limit_ms: ClassVar[int]

    def count(self, point: Point) -> int:
        return len(Underrun().values(point))

    def value(self, point: Point) -> float:
        values = Underrun().values(point)
        return 100 * sum(within(v, self.limit_ms / 1000) for v in values) / len(values)


class C50(Continuity):
    """Streams that pause for at most 50 ms."""

    name, title, limit_ms = "c50", "Streams that never pause over 50 ms", 50


class C100(Continuity):
    """Streams that pause for at most 100 ms."""

    name, title, limit_ms = "c100", "Streams that never pause over 100 ms", 100


class C200(Continuity):
    """Streams that pause for at most 200 ms."""

    name, title, limit_ms = "c200", "Streams that never pause over 200 ms", 200


class AudioThroughput(Total):
    """Audio of successful requests a second of the window.

    Audio made counts when its chunk came, audio understood when its transcript was complete.
    """

    name, title, unit, better = "audio_throughput", "Audio throughput", "audio-s/s", "higher"
    needs = "audio in or out"

    def parts(self, point: Point) -> list[float]:
        """Seconds of audio, event by event."""
        made = [c.size / r.sound.rate for r, c in events(point) if r.sound]
        good = (r for r in point.records if r.outcome == "ok" and not r.sound and r.input_seconds)
        heard = [r.input_seconds or 0.0 for r in good if point.start <= ended(r) <= point.end]
        return made + heard

    def count(self, point: Point) -> int:
        return len(self.parts(point))

    def value(self, point: Point) -> float | None:
        return sum(self.parts(point)) / point.seconds if point.seconds > 0 else None
