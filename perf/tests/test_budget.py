"""A run with a time budget: it ends in time whatever the targets' paces, and says what it cut."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from perf.arrivals import closed
from perf.budget import ENDING, UNKNOWN, Budget, Cell, pace_of
from perf.client.routes import Target
from perf.fake_server import FakeServer, Script
from perf.health import Watch
from perf.launch import Running
from perf.metrics import totals
from perf.schema import Load, Run
from perf.session import Session, Settings, measure
from perf.sweep import KneeSweep
from perf.tests.virtual import dial_to, simulate
from perf.validity import fit, flags, used
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


def test_where_time_is_short_the_first_loads_are_whole_and_the_last_are_cut_and_say_so():
    run, took = timed(budget=20, seconds=1.0)
    assert took <= 20
    first, second, last = run.points
    assert totals.counts(first).ok == totals.counts(first).sent == 4
    assert not first.cut
    assert totals.counts(second).ok == totals.counts(second).sent == 4
    assert "time budget" in last.cut
    assert not last.measured  # nothing is made up for what had no time
    assert {f.code for f in flags(last, run.config, 2)} == {"cut", "no_answers"}


def test_a_point_that_is_cut_keeps_whole_answers_alone():
    run, _ = timed(budget=27, seconds=1.9)
    second = run.points[1]
    assert "time budget" in second.cut
    assert totals.counts(second).ok == totals.counts(second).sent >= 1
    assert {f.code for f in flags(second, run.config, 2)} == {"cut"}


def cells(*loads, wanted: int = 16, label: str = "server", first: bool = True) -> list[Cell]:
    return [Cell(label, load, wanted, first) for load in loads]


def test_shares_go_by_the_pace_of_each_target_and_what_is_least_comes_first():
    run, _ = timed(budget=1000, seconds=1.0)
    assert pace_of(run.points, "server") == pytest.approx(1.0, rel=0.05)
    assert pace_of(run.points, "other") is None
    least, full = 6 / 0.9, 18 / 0.9
    three = [*cells(closed(1)), *cells(closed(1), label="other"), *cells(closed(32))]
    budget = Budget(100, list(three))
    share = budget.share(0.0, run.points)
    owed = least + UNKNOWN * least + 37 / 0.9
    more = (100 - owed) * (full - least) / ((full - least) * (2 + UNKNOWN))
    assert share.seconds == pytest.approx(least + more, rel=0.02)
    assert 4 <= share.requests <= 16
    assert budget.cells == three[1:]
    assert Budget(1000, list(three)).share(0.0, run.points).requests == 16


def test_further_repeats_are_made_while_they_fit():
    run, took = timed(budget=110, seconds=1.0, repeats=3)
    assert took <= 110
    made = Counter(p.load.level for p in run.points)
    assert made[1] == 3
    assert made[32] == 1
    assert not any(p.cut for p in run.points if p.repeat == 0)
    known = run.points
    alone = Budget(7, cells(closed(1), first=False)).share(0.0, known)
    assert alone is not None
    assert alone.requests == 4
    assert Budget(6, cells(closed(1), first=False)).share(0.0, known) is None


def test_an_open_loop_also_waits_until_its_requests_are_due():
    run, _ = timed(budget=1000, seconds=0.1)
    slow = Load("poisson", 0.5)
    assert Budget(1000, cells(slow)).share(0.0, run.points).seconds == pytest.approx(18 * 2 / 0.9)


class Neighbour(Watch):
    """A machine on which something else runs while the second point is measured."""

    seen = 0

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        type(self).seen += 1
        busy = 1.0 if self.seen == 2 else 0.0
        span = self.samples[-1].t - self.samples[0].t
        for sample in self.samples:
            sample.client, sample.server = 0.0, 0.0
            sample.busy = busy * span * (sample is self.samples[-1])


def test_a_point_that_the_machine_has_spoilt_is_measured_again_and_does_not_count(monkeypatch):
    monkeypatch.setattr("perf.session.Watch", Neighbour)
    monkeypatch.setattr(Neighbour, "seen", 0)
    run, _ = timed(budget=1000, seconds=0.1)
    assert [(p.load.level, p.repeat) for p in run.points] == [(1, 0), (4, 0), (32, 0), (4, 1)]
    spoilt, again = run.points[1], run.points[3]
    cores = run.client["cores"]
    assert not fit(spoilt, run.config, cores)
    assert used([spoilt, again], run.config, cores) == [again]
    assert used([spoilt], run.config, cores) == [spoilt]


def test_a_target_without_an_answer_is_not_tried_again():
    run, took = timed(budget=200, script=Script(fault="hang", at=0), repeats=2)
    first, *others = run.points
    assert first.records
    assert "time budget was over" in first.cut
    assert [(p.records, p.cut[:9]) for p in others] == [([], "not tried")] * 2
    assert took == pytest.approx(first.allotted, abs=0.1)
    assert {"no_answers", "cut"} <= {f.code for f in flags(others[0], run.config, 2)}


def test_its_time_goes_to_the_others():
    run, _ = timed(budget=1000, seconds=1.0)
    silent = [replace(run.points[0], label="dead", records=[])]
    both = [*cells(closed(1), wanted=90), *cells(closed(1), wanted=90, label="dead")]
    alone, beside = (Budget(90, list(both)).share(0.0, [*run.points, *more]) for more in (silent, []))
    assert alone.seconds == pytest.approx(90)
    assert beside.seconds < 40


def test_a_search_has_no_budget():
    with pytest.raises(BadRequest, match="set loads"):
        measure(
            [Target("http://x", "m")], sentences(), [], Settings(budget=10), planner=lambda route: KneeSweep(route, {})
        )
