"""Sweeps on a scripted server whose capacity is known: eight seats of half a second are sixteen requests a second."""

from __future__ import annotations

import random

import pytest

from perf.arrivals import closed
from perf.client.routes import Target
from perf.fake_server import FakeServer, Script
from perf.launch import Running
from perf.schema import Load, Run
from perf.session import Session, Settings
from perf.sweep import KneeSweep, Planner, RateSearch, Step, highest_rate, knee, steps
from perf.tests.virtual import dial_to, simulate
from perf.validity import flags
from perf.workloads import sentences
from serving.errors import BadRequest


def explore(planner: Planner, **settings) -> Run:
    rng = random.Random(0)

    async def main() -> Run:
        server = FakeServer(lambda i: Script(first=rng.uniform(0.4, 0.6), gaps=()), slots=8)
        session = Session(sentences(), [], Settings(**settings), dial=dial_to(server), planner=lambda route: planner)
        return await session.run([Running(Target("http://fake", "fake"))])

    return simulate(main)


def test_the_knee_is_where_the_seats_are_full():
    run = explore(KneeSweep("speech", {}), requests=64)
    levels = [int(p.load.level) for p in run.points]
    assert levels[:5] == [1, 2, 4, 8, 16]
    assert len(levels) <= 8
    found = knee(steps(run.points, "speech", {}, "closed"))
    assert found is not None
    assert found.load == closed(8)


def test_objectives_move_the_knee():
    run = explore(KneeSweep("speech", {"ttfa": 0.4}), requests=16)
    assert [p.load.level for p in run.points] == [1]
    assert knee(steps(run.points, "speech", {"ttfa": 0.4}, "closed")) is None


def test_the_highest_rate_that_holds_is_found():
    slos = {"ttfa": 1.0}
    run = explore(RateSearch("speech", slos), requests=200, slos=slos)
    found = highest_rate(steps(run.points, "speech", slos, "poisson"))
    assert found is not None
    assert 11.0 <= found.load.level <= 16.5
    assert any(p.load.level > found.load.level for p in run.points)


def test_overload_is_not_waited_for():
    once = iter([Load("poisson", 40.0)])
    run = explore(lambda points: next(once, None), requests=400, slos={"ttfa": 1.0})
    (point,) = run.points
    assert point.cut
    assert not point.partial
    assert len(point.measured) < 150
    assert "cut" in {flag.code for flag in flags(point, run.config, 2)}


def test_search_needs_an_objective_and_gives_up_below_reach():
    with pytest.raises(BadRequest, match="needs an objective"):
        RateSearch("speech", {})
    run = explore(RateSearch("speech", {"ttfa": 0.1}), requests=16, slos={"ttfa": 0.1})
    assert highest_rate(steps(run.points, "speech", {"ttfa": 0.1}, "poisson")) is None
    assert len(run.points) <= 9


def test_knee_and_rate_rules():
    def step(level: float, throughput: float, good: float = 100.0, kind: str = "closed") -> Step:
        return Step(Load(kind, level), throughput, good)

    assert knee([step(1, 1), step(2, 1.9), step(4, 1.95)]) == step(2, 1.9)
    assert knee([step(1, 1), step(2, 1.9, good=90), step(4, 4)]) == step(1, 1)
    rates = [step(1, 1, kind="poisson"), step(2, 2, 80, "poisson"), step(3, 3, kind="poisson")]
    assert highest_rate(rates) == rates[0]
    assert highest_rate([]) is None
