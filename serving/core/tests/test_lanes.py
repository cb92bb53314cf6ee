"""Which steps run at once, with how many threads, in which memory."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from serving.capture import Runner
from serving.core.contract import Edge, Node, Offer, Options, Packed, Piece, Resource, Settled, Verdict
from serving.core.engine import Engine
from serving.core.runtime import ModelRun, useful
from serving.core.streams import Each
from serving.core.tests.kit import Paper, loaded, outputs, running, submit


class Meeting(Node):
    """Each step waits for another one to run, as long as `patience`; gives 1 where one came."""

    name = "meeting"
    buckets = ((1, 1),)

    def __init__(self, patience):
        self.here, self.met = threading.Barrier(2, timeout=patience), []
        self.threads, self.memory = [], []

    def offer(self, row):
        return Offer(("meet", row.slot))  # a step a row

    def stage(self, b):
        b.buffer("mark", (b.size,), torch.int64)

    def launch(self, b):
        if not b.n:
            return {"met": torch.zeros(b.size)}
        self.threads.append(torch.get_num_threads())
        b.buffers["mark"].fill_(int(b.index[0]))
        try:
            self.here.wait()
        except threading.BrokenBarrierError:
            return {"met": torch.zeros(b.size)}
        self.memory.append((int(b.index[0]), int(b.buffers["mark"][0])))
        return {"met": torch.ones(b.size)}

    def settle(self, b, out):
        return Settled(np.full(b.n, Verdict.DONE), {"met": Packed(out["met"][: b.n], np.ones(b.n, np.int64))})


def once(job):
    yield Piece("all", {}, None)


MET = (Edge("meeting.met", "client.met", Each()),)


async def met(node, requests=2, **settings):
    async with running(Paper([node], MET, pieces=once), **settings) as engine:
        handles = [await submit(engine) for _ in range(requests)]
        return [value for got in await asyncio.gather(*(outputs(h, "met") for h in handles)) for value in got]


async def test_rows_of_a_node_that_writes_nothing_shared_run_at_once():
    assert await met(Meeting(10.0), lanes=2) == [1, 1]


async def test_with_one_lane_they_do_not():
    """The control of the test before."""
    assert await met(Meeting(0.05), lanes=1) == [0, 0]


async def test_steps_that_run_at_once_have_memory_of_their_own():
    node = Meeting(10.0)
    await met(node, requests=6, lanes=2)
    assert len(node.memory) == 6
    assert all(slot == mark for slot, mark in node.memory)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
async def test_a_lane_that_is_alone_has_all_threads_and_two_share_them():
    alone, pair = Meeting(0.2), Meeting(10.0)
    assert await met(alone, requests=1, lanes=2) == [0]
    assert alone.threads == [2]
    await met(pair, lanes=2)
    assert pair.threads[1] == 1  # the other had begun


@pytest.mark.parametrize(
    ("depths", "ready", "threads"),
    [([1, 0], 0, 8), ([1, 0], 3, 4), ([2, 1], 0, 4), ([1, 0, 0, 0], 2, 2)],
)
def test_threads_are_shared_by_the_lanes_that_are_or_will_be_busy(depths, ready, threads):
    engine = Engine([])
    engine._threads, engine._lanes = 8, [SimpleNamespace(depth=depth) for depth in depths]
    assert engine._share(ready) == threads


def test_one_lane_leaves_the_threads_as_they_are():
    engine, got = Engine([]), []
    lane = SimpleNamespace(depth=0, steps=[], submit=lambda job, threads: got.append(threads))
    engine._threads, engine._lanes = 8, [lane]
    engine._send(SimpleNamespace(), lane, [])
    assert got == [None]


def step(node, repeats=False):
    return SimpleNamespace(node=node, repeats=repeats)


class Store(Resource):
    capacity = 8

    def need(self, lanes, units):
        return 1


def nodes():
    """A node that writes a resource, one that reads it, one that has none."""
    made = [type(name, (Node,), {"name": name})() for name in ("writer", "reader", "free")]
    made[0].writes, made[1].reads = ("store",), ("store",)
    paper = Paper(made, (), pieces=once, resources={"store": Store()})
    return ModelRun(loaded(paper, 8)).nodes


def test_who_reads_what_another_writes_shares_its_lane():
    found = nodes()
    assert not found["reader"].apart(step(found["writer"]))
    assert not found["writer"].apart(step(found["reader"]))
    assert found["reader"].apart(step(found["reader"]))


def test_a_node_shares_a_lane_with_itself_where_it_writes_or_runs_ahead():
    found = nodes()
    assert not found["writer"].apart(step(found["writer"]))
    assert found["free"].apart(step(found["free"]))
    assert not found["free"].apart(step(found["free"], repeats=True))
    assert found["free"].apart(step(found["writer"]))


def model(parallel, sharing=True):
    return SimpleNamespace(parallel=parallel, sharing=sharing)


@pytest.mark.parametrize(
    ("parallel", "cores", "lanes"),
    [([0], 8, 1), ([0, 0], 8, 2), ([0, 0], 1, 1), ([0, 0, 0], 8, 3), ([0, 1], 8, 8), ([1], 1, 1)],
)
def test_lanes_are_what_the_models_can_use_and_the_cores_allow(parallel, cores, lanes):
    assert useful([model(one) for one in parallel], cores) == lanes


def test_a_model_whose_bits_depend_on_threads_keeps_all_on_one_lane():
    assert useful([model(True), model(False, sharing=False)], 8) == 1


def test_a_set_that_is_in_use_is_never_given_again():
    runner = Runner(Meeting(0.1), Options(capture="static"))
    index = np.array([1])
    first, second = runner.frame(index, 1), runner.frame(index, 1)
    assert first is not second
    first.busy = second.busy = True
    third = runner.frame(index, 1)
    assert third is not first
    assert third is not second
    second.busy = False
    assert runner.frame(index, 1) is second
