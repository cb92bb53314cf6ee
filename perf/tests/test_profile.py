"""A profile adds up: of steps that are written here, and of the toy behind the real engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from models import registry
from perf.profile import Profile, idle_before, load_profile, parts, profile
from perf.workloads import sentences, tones
from serving.core.contract import LoadedModel, Options
from serving.core.engine import Trace
from serving.errors import BadRequest


def step(node: str, rows: int, size: int, began: float, seconds: float) -> Trace:
    return Trace("model", node, rows, size, rows, began, seconds)


STEPS = [
    step("loop", 4, 4, 10.5, 1.0),
    step("codec", 1, 2, 11.5, 0.5),
    step("loop", 3, 4, 12.25, 1.0),  # a quarter of a second late, a quarter of its rows padding
    step("loop", 1, 1, 13.25, 0.5),
]


def made(steps=STEPS) -> Profile:
    options = {"device": "cpu"}
    host = {"loop": {"settle": 0.25, "stage": 0.125}}
    return Profile(
        "model", "speak", "texts", options, 4, 8, "2026-01-01", {"cores": 2, "cpu": "x"}, 10.0, 14.0, steps, 0.5, 6.0,
        host, {"prepare": 0.75},
    )  # fmt: skip


@pytest.fixture
def toy():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield registry.load("toy", Options(rows=4))
    torch.set_num_threads(threads)


def test_time_padding_idle_and_host_by_node_and_size():
    assert idle_before(STEPS[::-1], 10.0) == [0.5, 0.0, 0.25, 0.0]
    found = {(p.node, p.size): p for p in parts(made())}
    assert list(found) == [("loop", None), ("loop", 1), ("loop", 4), ("codec", None), ("codec", 2)]
    loop = found["loop", None]
    assert (loop.steps, loop.seconds, loop.idle, loop.host) == (3, 2.5, 0.75, 0.375)
    assert loop.rows == pytest.approx(8 / 3)
    assert loop.waste == pytest.approx(0.25 / 2.5)
    assert found["loop", 4].waste == pytest.approx(0.125)
    assert found["loop", 1].waste == 0.0
    assert found["codec", 2].waste == 0.5
    assert found["codec", None].host == 0.0


def test_steps_that_overlap_leave_no_idle_time():
    assert idle_before([step("a", 1, 1, 0.0, 2.0), step("b", 1, 1, 1.0, 0.5), step("a", 1, 1, 2.5, 1.0)], 0.0) == [
        0.0, 0.0, 0.5,
    ]  # fmt: skip


def test_a_run_of_the_toy_accounts_for_its_time(toy: LoadedModel, tmp_path: Path):
    settle = toy.model.graph.nodes["lm"].settle
    found = asyncio.run(profile(toy, sentences(4), concurrency=2, requests=3, warmup=1))
    nodes = [p for p in parts(found) if p.size is None]
    assert {p.node for p in nodes} == {"lm", "codec"}
    assert sum(p.steps for p in nodes) == len(found.steps)
    assert max(t.rows for t in found.steps) > 1
    busy, idle = sum(p.seconds for p in nodes), sum(p.idle for p in nodes)
    assert 0 < busy + idle <= found.wall
    assert all(p.host and p.host < found.wall for p in nodes)
    assert 0 < found.engine_cpu <= found.process_cpu
    assert set(found.pools) == {"prepare", "present"}
    assert load_profile(found.save(tmp_path / "profile.json")) == found
    assert toy.model.graph.nodes["lm"].settle == settle  # nothing is left on the model


def test_a_workload_of_another_task_is_refused(toy: LoadedModel):
    with pytest.raises(BadRequest, match="does not serve transcription"):
        asyncio.run(profile(toy, tones(1, seconds=0.1)))
