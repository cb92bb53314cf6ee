"""A run with a time budget: it ends in time whatever the targets' paces, and says what it cut."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from perf.arrivals import closed
from perf.budget import ENDING, Budget, pace_of
from perf.client.routes import Target
from perf.fake_server import FakeServer, Script
from perf.launch import Running
from perf.metrics import totals
from perf.schema import Run
from perf.session import Session, Settings, measure
from perf.sweep import KneeSweep
from perf.tests.virtual import dial_to, simulate
from perf.validity import flags
from perf.workloads import sentences
from serving.errors import BadRequest

LOADS = [closed(1), closed(4), closed(32)]


def timed(budget: float, seconds: float = 1.0, script: Script | None = None, **settings) -> tuple[Run, float]:
    """The run, and how long it took: one seat, an answer in `seconds`."""

    async def main() -> tuple[Run, float]:
        loop = asyncio.get_running_loop()
        server = FakeServer(lambda i: script or Script(first=seconds, gaps=()), slots=1)
        session = Session(sentences(), LOADS, Settings(budget=budget, **settings), dial=dial_to(server))
        began = loop.time()
        run = await session.run([Running(Target("http://fake", "fake"))])
        return run, loop.time() - began

    return simulate(main)


def test_what_fits_is_measured_as_if_there_were_no_budget():
    run, took = timed(budget=1000, seconds=0.1)
    assert [len(p.measured) for p in run.points] == [16, 16, 64]
    assert not any(p.cut for p in run.points)
    assert took < 100


@pytest.mark.parametrize("seconds", [1.0, 3.0])
def test_a_slow_server_gets_fewer_requests_and_the_run_ends_in_time(seconds):
    run, took = timed(budget=200 * seconds, seconds=seconds)
    assert took <= 200 * seconds * (1 - ENDING)
    assert took > 100 * seconds
    assert run.config.budget == 200 * seconds
    for point in run.points:
        counts = totals.counts(point)
        assert counts.sent == counts.ok >= 4
        assert point.allotted is not None
        assert point.end - point.samples[0].t <= point.allotted + 1
    at_32 = run.points[2].measured
    assert min(r.end - r.sent for r in at_32) == pytest.approx(32 * seconds, rel=0.05)  # never on a queue half full


def test_a_point_that_is_cut_keeps_whole_answers_alone_and_says_so():
    run, took = timed(budget=20, seconds=1.0)
    assert took <= 20
    assert all("time budget" in p.cut for p in run.points)
    first, *_, last = run.points
    assert totals.counts(first).ok == totals.counts(first).sent >= 1
    assert {f.code for f in flags(first, run.config, 2)} == {"cut"}
    assert not last.measured  # nothing is made up for what had no time
    assert "no_answers" in {f.code for f in flags(last, run.config, 2)}


def test_shares_go_by_the_pace_of_each_target():
    run, _ = timed(budget=1000, seconds=1.0)
    assert pace_of(run.points, "server") == pytest.approx(1.0, rel=0.05)
    assert pace_of(run.points, "other") is None
    budget = Budget(100, [("server", closed(1)), ("other", closed(1)), ("server", closed(32))])
    share = budget.share(0.0, 16, run.points)
    assert share.seconds == pytest.approx(100 * 18 / (18 + 18 + 52), rel=0.01)
    assert share.requests == 16
    assert budget.cells == [("other", closed(1)), ("server", closed(32))]


def test_a_target_without_an_answer_is_not_tried_again():
    run, took = timed(budget=200, script=Script(fault="hang", at=0))
    first, *others = run.points
    assert first.records
    assert "time budget was over" in first.cut
    assert [(p.records, p.cut[:9]) for p in others] == [([], "not tried")] * 2
    assert took == pytest.approx(first.allotted, abs=0.1)
    assert {"no_answers", "cut"} <= {f.code for f in flags(others[0], run.config, 2)}


def test_its_time_goes_to_the_others():
    run, _ = timed(budget=1000, seconds=1.0)
    silent = [replace(run.points[0], label="dead", records=[])]
    cells = [("server", closed(1)), ("dead", closed(1))]
    alone, beside = (Budget(100, list(cells)).share(0.0, 16, [*run.points, *more]) for more in (silent, []))
    assert alone.seconds == pytest.approx(100)
    assert beside.seconds == pytest.approx(50, rel=0.05)


def test_a_search_has_no_budget():
    with pytest.raises(BadRequest, match="set loads"):
        measure(
            [Target("http://x", "m")], sentences(), [], Settings(budget=10), planner=lambda route: KneeSweep(route, {})
        )
