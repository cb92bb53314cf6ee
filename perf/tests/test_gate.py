"""The gate on the scripted server with jitter, in simulated time: it must neither cry wolf nor sleep."""

from __future__ import annotations

import dataclasses
import random
from functools import cache

import pytest

from perf.arrivals import closed
from perf.client.routes import Target
from perf.fake_server import FakeServer, Script
from perf.gate import REPEATS, compare, judge, overall, ratio_interval
from perf.launch import Running, toolkit
from perf.metrics.audio import AudioThroughput
from perf.metrics.latency import EndToEnd
from perf.schema import Run
from perf.session import Session, Settings, measure
from perf.tests.virtual import dial_to, simulate
from perf.workloads import sentences
from serving.errors import BadRequest

LOAD = closed(2)


@cache
def version(seed: int, slower: float = 1.0) -> Run:
    """Five repeats on a server whose times vary by 6 %. Only the first run looks at the machine that it is on."""
    rng = random.Random(seed)

    def script(i: int) -> Script:
        first, gap = (slower * rng.gauss(1, 0.06) * t for t in (0.3, 0.2))
        return Script(first=max(0.01, first), gaps=[max(0.01, gap)], size=600)

    settings = Settings(requests=20, warmup=2, repeats=5)
    empty = dataclasses.replace(version(0), points=[]) if seed or slower != 1 else None

    async def main() -> Run:
        session = Session(sentences(16), [LOAD], settings, dial=dial_to(FakeServer(script)))
        return await session.run([Running(Target("http://fake", "fake"))], resume=empty)

    return simulate(main)


def test_equal_versions_never_fail_and_a_planted_slow_down_does():
    equal = [overall(compare(version(i), version(i + 1))) for i in range(20)]
    slower = [overall(compare(version(i), version(i + 1, 1.15))) for i in range(20)]
    assert equal.count("fail") == 0
    assert slower.count("fail") >= 18
    assert equal.count("pass") >= 10


def test_faster_passes_whichever_way_is_better():
    for found in compare(version(1), version(2, 0.8), ["audio_throughput", "e2e"]):
        assert found.verdict == "pass"
        assert (found.ratio > 1.1) == (found.metric == "audio_throughput")


def test_few_repeats_and_invalid_points_are_inconclusive():
    values = [1.0, 1.01, 0.99, 1.0, 1.02]
    doubled = [2 * v for v in values]
    assert judge(EndToEnd(), LOAD, values, doubled, 0.05).verdict == "fail"
    assert judge(AudioThroughput(), LOAD, values, doubled, 0.05).verdict == "pass"
    assert judge(EndToEnd(), LOAD, values[:4], doubled[:4], 0.05).verdict == "inconclusive"
    assert judge(EndToEnd(), LOAD, values, doubled, 0.05, trusted=False).verdict == "inconclusive"
    for few in ([], [1.0]):
        assert judge(EndToEnd(), LOAD, few, few, 0.05).verdict == "inconclusive"
    run = version(1)
    cut = [dataclasses.replace(p, partial=p.repeat == 2) for p in run.points]
    partial = dataclasses.replace(run, points=cut)
    assert overall(compare(run, partial)) == "inconclusive"


def test_interval_of_a_ratio():
    ratio, low, high = ratio_interval([2.0] * 5, [3.0] * 5)
    assert (ratio, low, high) == (1.5, 1.5, 1.5)
    ratio, low, high = ratio_interval([1, 2, 3, 4, 5], [2, 4, 6, 8, 10])
    assert low < ratio == 2.0 < high


def test_what_cannot_be_compared_is_refused():
    run = version(1)
    with pytest.raises(BadRequest, match='Did you mean "ttfa"'):
        compare(run, run, ["ttfaa"])
    chat = dataclasses.replace(run, config=dataclasses.replace(run.config, routes={"server": "chat"}))
    with pytest.raises(BadRequest, match="speech with chat"):
        compare(run, chat)
    other = dataclasses.replace(run, points=[dataclasses.replace(p, load=closed(9)) for p in run.points])
    with pytest.raises(BadRequest, match="no load in common"):
        compare(run, other)
    two = dataclasses.replace(run, points=[run.points[0], dataclasses.replace(run.points[1], label="other")])
    with pytest.raises(BadRequest, match="other, server"):
        compare(two, two)


@pytest.mark.nightly
def test_real_servers_of_one_version_are_equal_and_twice_the_work_is_a_loss(tmp_path):
    """The toy, served three times: `more` gets two sentences where the others get one."""
    targets = [toolkit("toy", label=label) for label in ("before", "after", "more")]
    works = {"before": sentences(16), "after": sentences(16), "more": sentences(16, parts=(2, 2))}
    run = measure(targets, works, [LOAD], Settings(requests=12, repeats=REPEATS), out=tmp_path)
    equal = compare(run, run, ["e2e"], label_a="before", label_b="after")
    assert [len(c.a) for c in equal] == [REPEATS]
    assert overall(equal) != "fail", equal
    (more,) = compare(run, run, ["e2e"], label_a="before", label_b="more")
    trusted = judge(EndToEnd(), LOAD, more.a, more.b, 0.05)  # whatever else ran on this machine
    assert trusted.verdict == "fail", more
