"""Every metric against the scripted server in simulated time, where its value is known by arithmetic.

For each fault that public benches had, a wrong form of the metric is planted: it must not give that value.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from perf.arrivals import closed
from perf.client.clock import Clock
from perf.client.routes import Sender, Target
from perf.fake_server import FakeServer, Script
from perf.health import Watch
from perf.loadgen import Generator, Plan
from perf.metrics import audio, evaluate, latency, totals
from perf.metrics.base import content, ended
from perf.metrics.goodput import Goodput
from perf.schema import Load, Point
from perf.tests.virtual import dial_to, simulate
from perf.workloads.base import Item, Workload
from serving.errors import BadRequest

ITEMS = [Item(f"s{i}", f"sentence number {i}", seconds=None) for i in range(50)]


def bench(
    route: str,
    script: Callable[[int], Script],
    load: Load | None = None,
    *,
    requests: int = 4,
    warmup: int = 0,
    slots: int | None = None,
    timeout: float = 60.0,
    cancel_every: int = 0,
    server: FakeServer | None = None,
) -> Point:
    """A point measured in simulated time."""
    served = server or FakeServer(script, slots)

    async def main() -> Point:
        clock = Clock()
        sender = Sender(Target("http://fake", "fake"), route, clock, dial=dial_to(served))
        items = Workload("test", route, ITEMS).stream()
        plan = Plan(requests, warmup, timeout, cancel_every=cancel_every, cancel_after=0.1)
        return await Generator(sender, items, clock, load or closed(1), plan).run(Watch(clock), asyncio.Event())

    return simulate(main)


def value(point: Point, route: str, name: str) -> float | None:
    return evaluate(point, route)[name].value


def near(x: float) -> object:
    return pytest.approx(x, abs=2e-5)


STREAM = Script(first=0.3, gaps=(0.05, 0.07, 0.09, 0.05), size=2400, header=0.2)  # 0.1 s of audio a chunk


def test_speech_known_answers():
    point = bench("speech", lambda i: STREAM)
    expected = {
        "ttfa": 0.3,
        "first_share": 100 * 0.3 / 0.56,
        "e2e": 0.56,
        "icl": 0.065,
        "rtf": 0.56 / 0.5,
        "rtf_gen": 0.26 / 0.4,
        "audio_s": 0.5,
        "underrun": 0.0,
        "c50": 100.0,
        "success": 100.0,
        "audio_throughput": 0.5 / 0.56,
        "request_throughput": 1 / 0.56,
    }
    for name, want in expected.items():
        assert value(point, "speech", name) == near(want), name
    assert evaluate(point, "speech")["icl"].n == 4 * 4


def test_chat_known_answers():
    script = Script(first=0.2, gaps=(0.06, 0.12), size=3, usage="running", header=0.1)
    point = bench("chat", lambda i: script)
    assert value(point, "chat", "ttft") == near(0.2)
    assert value(point, "chat", "icl") == near(0.09)
    assert value(point, "chat", "itl") == near((3 * 0.02 + 3 * 0.04) / 6)
    assert evaluate(point, "chat")["itl"].n == 4 * 6
    assert value(point, "chat", "tpot") == near(0.18 / 8)
    assert value(point, "chat", "token_throughput") == near(9 / 0.38)


def test_tokens_of_a_chunk_that_nobody_counted_are_not_guessed():
    point = bench("chat", lambda i: Script(size=3, usage="total"))
    results = evaluate(point, "chat")
    assert results["itl"].n == 0
    assert results["itl"].value is None
    assert results["tpot"].n == 4
    single = bench("chat", lambda i: Script(size=1, usage="total"))
    assert value(single, "chat", "itl") == near(0.05)


def test_transcription_known_answers():
    point = bench("transcription", lambda i: Script(first=0.4, gaps=()))
    assert value(point, "transcription", "e2e") == near(0.4)
    assert value(point, "transcription", "ttft") == near(0.4)


def test_underrun_is_what_a_player_would_have_had_to_buffer():
    stall = Script(first=0.1, gaps=(0.25, 0.01, 0.05), size=2400)  # chunk 1 is due 0.1 s after chunk 0
    results = evaluate(bench("speech", lambda i: stall if i % 2 else STREAM), "speech")
    underrun = results["underrun"].summary
    assert underrun is not None
    assert (underrun.max, underrun.min) == (near(0.15), near(0.0))
    assert [results[c].value for c in ("c50", "c100", "c200")] == [50.0, 50.0, 100.0]


def test_one_chunk_has_no_continuity():
    results = evaluate(bench("speech", lambda i: Script(gaps=())), "speech")
    assert (results["underrun"].n, results["c50"].value) == (0, None)


def test_durations_come_from_the_declared_rate():
    for rate in (16_000, 22_050, 48_000):
        script = Script(rate=rate, size=rate // 10)
        assert value(bench("speech", lambda i, s=script: s), "speech", "audio_s") == near(0.5)


def test_a_chunk_sent_twice_is_not_more_audio():
    point = bench("speech", lambda i: Script(repeats=frozenset({1, 3})))
    assert value(point, "speech", "audio_s") == near(0.5)
    assert sum(c.kind == "repeat" for c in point.measured[0].chunks) == 2


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (Script(status=503), "status 503"),
        (Script(fault="error"), "disconnected"),
        (Script(fault="drop"), "disconnected"),
        (Script(fault="stop"), "truncated"),
        (Script(fault="hang"), "timeout"),
        (Script(fault="second_header"), "malformed"),
        (Script(fault="stop", at=0), "empty"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_failures_are_counted_and_have_no_latency(script: Script, reason: str):
    point = bench("speech", lambda i: script if i % 2 else STREAM, requests=6, timeout=2.0)
    counts = totals.counts(point)
    assert (counts.sent, counts.ok, counts.failed, counts.dropped) == (6, 3, 3, 0)
    assert totals.failures(point) == {reason: 3}
    results = evaluate(point, "speech")
    assert (results["success"].value, results["e2e"].n) == (50.0, 3)
    assert results["e2e"].summary is not None
    assert results["e2e"].summary.max == near(0.56)


def test_a_request_without_an_end_is_dropped_and_no_success():
    """Every third client leaves: neither an answer nor a failure of the server's, and never nothing."""
    point = bench("speech", lambda i: STREAM, requests=6, cancel_every=3)
    counts = totals.counts(point)
    assert (counts.sent, counts.ok, counts.failed, counts.dropped) == (6, 4, 0, 2)
    assert value(point, "speech", "success") == near(100 * 4 / 6)


def test_chat_errors_in_the_stream_are_failures():
    point = bench("chat", lambda i: Script(fault="error" if i % 2 else "stop"), requests=4)
    assert totals.failures(point) == {"in_band": 2, "truncated": 2}


def test_warm_up_is_told_by_time_and_keeps_to_the_cap():
    slow = Script(first=3.0, gaps=())
    quick = Script(first=0.5, gaps=())
    server = FakeServer(lambda i: slow if i < 4 else quick)
    point = bench("speech", lambda i: quick, closed(4), requests=8, warmup=4, server=server)
    assert server.most_in_flight == 4
    assert point.start == near(3.0)
    assert value(point, "speech", "ttfa") == near(0.5)
    assert len(point.measured) == 8


def test_load_is_held_until_the_last_measured_answer():
    scripts = {3: Script(first=4.8, gaps=())}
    server = FakeServer(lambda i: scripts.get(i, Script(first=0.5, gaps=())))
    point = bench("speech", lambda i: STREAM, closed(2), requests=4, server=server)
    assert [r.outcome for r in point.measured] == ["ok"] * 4
    assert point.seconds == near(0.5 + 4.8)
    assert value(point, "speech", "request_throughput") == near((10 + 2) / 5.3)  # the other worker went on
    assert value(point, "speech", "audio_throughput") == near(0.1 * (10 + 2) / 5.3)


def test_queueing_shows_in_latency_and_not_in_throughput():
    point = bench("speech", lambda i: Script(first=0.5, gaps=()), closed(8), requests=32, warmup=8, slots=4)
    assert value(point, "speech", "request_throughput") == pytest.approx(8.0, rel=0.07)
    assert value(point, "speech", "e2e") == near(1.0)


def test_goodput_needs_every_objective_and_refuses_unknown_ones():
    scripts = [STREAM, Script(first=0.9), Script(first=0.1, gaps=(0.4,)), Script(status=500)]
    point = bench("speech", lambda i: scripts[i % 4])
    slos = {"ttfa": 0.5, "underrun": 0.2}
    assert evaluate(point, "speech", slos)["goodput"].value == 25.0
    assert evaluate(point, "speech", {"ttfa": 1.0})["goodput"].value == 75.0
    assert evaluate(point, "speech")["goodput"].value is None
    with pytest.raises(BadRequest, match='Did you mean "ttfa"'):
        evaluate(point, "speech", {"ttfaa": 1.0})


def test_percentiles_say_when_there_are_too_few_values():
    summary = evaluate(bench("speech", lambda i: STREAM, requests=25), "speech")["ttfa"].summary
    assert summary is not None
    assert (summary.n, summary.insufficient) == (25, (90, 95, 99))


def test_open_loop_keeps_its_schedule_whatever_the_server_does():
    slow = Script(first=10.0, gaps=())
    point = bench("speech", lambda i: slow, Load("constant", 4), requests=20)
    assert value(point, "speech", "offered") == near(4.0)
    assert value(point, "speech", "achieved") == near(4.0)
    assert max(r.sent - r.scheduled for r in point.measured) < 1e-5


class FirstInGaps(latency.ChunkGap):
    def of(self, record):
        return [content(record)[0].t - record.sent, *super().of(record)]


class HeaderIsAudio(latency.FirstAudio):
    def of(self, record):
        return [record.chunks[0].t - record.sent]


class FailuresInLatency(latency.EndToEnd):
    def values(self, point):
        return [v for r in point.measured for v in self.of(r)]


class WarmUpIncluded(latency.EndToEnd):
    def values(self, point):
        return [v for r in point.records if ended(r) >= point.start and r.outcome == "ok" for v in self.of(r)]


class RateAssumed(audio.AudioDuration):
    def of(self, record):
        return [sum(c.size for c in content(record)) / 24_000]


class RepeatsCounted(audio.AudioDuration):
    def of(self, record):
        return [sum(c.size for c in record.chunks) / record.sound.rate]


class DroppedIsNothing(totals.SuccessRate):
    def value(self, point):
        kept = [r for r in point.measured if r.failure is None or r.failure.kind != "timeout"]
        return 100 * sum(r.outcome == "ok" for r in kept) / len(kept)


class ChunkIsToken(latency.TokenGap):
    def of(self, record):
        return latency.ChunkGap().of(record)


class PauseIsRtf(audio.Underrun):
    def of(self, record):
        return [max(0.0, audio.RealTimeFactor().of(record)[0] - 1)]


class FirstPacketLeftOut(audio.RealTimeFactor):
    def of(self, record):
        return [(ended(record) - content(record)[0].t) / audio.audio_seconds(record)]


class UnknownIsMet(Goodput):
    def met(self, record):
        return (record.outcome == "ok" and super().met(record)) or record.outcome == "failed"


STALL = Script(first=0.1, gaps=(0.3, 0.01, 0.01, 0.01), size=2400)
HANGS = Script(fault="hang")
CHAT = Script(first=0.2, gaps=(0.06, 0.12), size=3, usage="running")
WARM = (Script(first=3.0, gaps=()), Script(first=3.2, gaps=()))


@pytest.mark.parametrize(
    ("right", "wrong", "route", "script"),
    [
        (latency.ChunkGap, FirstInGaps, "speech", lambda i: STREAM),
        (latency.FirstAudio, HeaderIsAudio, "speech", lambda i: STREAM),
        (latency.EndToEnd, FailuresInLatency, "speech", lambda i: HANGS if i == 4 else STREAM),
        (latency.EndToEnd, WarmUpIncluded, "speech", lambda i: WARM[i] if i < 2 else STREAM),
        (audio.AudioDuration, RateAssumed, "speech", lambda i: Script(rate=48_000)),
        (audio.AudioDuration, RepeatsCounted, "speech", lambda i: Script(repeats=frozenset({2}))),
        (totals.SuccessRate, DroppedIsNothing, "speech", lambda i: HANGS if i == 4 else STREAM),
        (latency.TokenGap, ChunkIsToken, "chat", lambda i: CHAT),
        (audio.Underrun, PauseIsRtf, "speech", lambda i: STALL),
        (audio.RealTimeFactor, FirstPacketLeftOut, "speech", lambda i: STREAM),
    ],
    ids=lambda x: x.__name__ if isinstance(x, type) else "",
)
def test_planted_fault_gives_another_answer(right, wrong, route, script):
    """The known answers above hold for `right`; were its code `wrong`, they would not."""
    point = bench(route, script, closed(2), requests=4, warmup=1, timeout=20.0)
    honest, planted = right().result(point).value, wrong().result(point).value
    assert honest is not None
    assert planted != near(honest)
