"""The engine with nodes of a few lines: order, run-ahead, failure, back-pressure, pieces, time limits."""

import asyncio
import threading
import time

import numpy as np
import pytest
import torch

from serving.core.contract import Edge, Emit, Node, Offer, Packed, Piece, Settled, Verdict
from serving.core.scheduler import Rules
from serving.core.streams import Available, Each
from serving.core.tests.kit import Paper, outputs, running, settled, submit
from serving.errors import EngineDead, StepFailed, Timeout


class Counter(Node):
    """Counts up to the prompt's number in a table, one a step, running ahead; `work` seconds a step."""

    name = "counter"
    LOOP = Offer(("loop",), repeats=True)

    def __init__(self, rows=64, work=0.0):
        self.work, self.value = work, torch.zeros(rows + 1, dtype=torch.int64)
        self.until = np.zeros(rows + 1, np.int64)
        self.launched = []

    def begin(self, row):
        self.value[row.slot], self.until[row.slot] = 0, row.knobs

    def offer(self, row):
        return self.LOOP

    def launch(self, b):
        self.launched.append((time.perf_counter(), b.n))
        time.sleep(self.work)
        self.value[b.slots] += 1
        return {"count": self.value[b.slots]}

    def settle(self, b, out):
        done = out["count"][: b.n] >= self.until[b.index]
        verdicts = Verdict.until(done)
        return Settled(verdicts, {"count": Packed(out["count"][: b.n], np.ones(b.n, np.int64))})


COUNTS = (Edge("counter.count", "client.counts", Each()),)


def count_to(job):
    yield Piece("all", {}, job.inputs["until"])


async def test_rows_of_different_lengths_count_in_order():
    async with running(Paper([Counter()], COUNTS, pieces=count_to)) as engine:
        handles = [await submit(engine, {"until": n}) for n in (1, 7, 3, 20)]
        assert await asyncio.gather(*(outputs(h, "counts") for h in handles)) == [
            list(range(1, n + 1)) for n in (1, 7, 3, 20)
        ]


class Ahead(Counter):
    """Each step waits until the next one has been staged, and counts the times that it waited in vain."""

    def __init__(self, patience):
        super().__init__()
        self.patience, self.staged, self.alone = patience, threading.Condition(), 0
        self.stages = 0

    def stage(self, b):
        with self.staged:
            self.stages += 1
            self.staged.notify_all()

    def launch(self, b):
        out = super().launch(b)
        if (out["count"].numpy() < self.until[b.index]).all():
            with self.staged:
                self.alone += not self.staged.wait_for(lambda: self.stages > len(self.launched), self.patience)
        return out


async def test_the_next_step_is_staged_while_one_runs():
    node = Ahead(patience=10.0)
    async with running(Paper([node], COUNTS, pieces=count_to)) as engine:
        assert await outputs(await submit(engine, {"until": 40}), "counts") == list(range(1, 41))
    assert node.alone == 0


async def test_with_one_step_in_flight_nothing_is_staged_meanwhile():
    """The control of the test before."""
    node = Ahead(patience=0.02)
    async with running(Paper([node], COUNTS, pieces=count_to), rules=Rules(depth=1)) as engine:
        await outputs(await submit(engine, {"until": 10}), "counts")
    assert node.alone == 9


class Poisoned(Counter):
    """Fails whenever the row that counts to 13 is in the step."""

    rollback = True

    def launch(self, b):
        if 13 in self.until[b.index]:
            raise ValueError("thirteen")
        return super().launch(b)


async def test_a_row_that_fails_harms_no_other():
    async with running(Paper([Poisoned()], COUNTS, pieces=count_to)) as engine:
        handles = [await submit(engine, {"until": n}) for n in (5, 13, 9)]
        good = asyncio.gather(outputs(handles[0], "counts"), outputs(handles[2], "counts"))
        with pytest.raises(StepFailed, match="counter failed: ValueError: thirteen"):
            await outputs(handles[1], "counts")
        assert await good == [list(range(1, 6)), list(range(1, 10))]
        await settled(engine)
        assert engine.state == "ready"


async def test_a_sticky_device_error_ends_the_engine_and_says_so():
    node = Counter()

    def broken(b):
        raise torch.AcceleratorError("the device fell off")

    node.launch = broken
    async with running(Paper([node], COUNTS, pieces=count_to)) as engine:
        handle = await submit(engine, {"until": 3})
        with pytest.raises((EngineDead, StepFailed)):
            await outputs(handle, "counts")
        while engine.state != "dead":
            await asyncio.sleep(0.01)
        with pytest.raises(EngineDead, match="fell off"):
            await submit(engine, {"until": 3})


class Relay(Node):
    """Passes what it gets, a chunk at a time."""

    def __init__(self, name, pause=0.0):
        self.name, self.pause, self.sizes = name, pause, []

    def offer(self, row):
        chunk = row.chunks["x"]
        return None if chunk is None else Offer(("relay",), take=("x",))

    def launch(self, b):
        time.sleep(self.pause)
        return {}

    def settle(self, b, out):
        self.sizes += [chunk.stop - chunk.fresh for chunk in b.chunks("x")]
        values = b.ins["x"].values
        final = [chunk.final for chunk in b.chunks("x")]
        return Settled(np.where(final, Verdict.DONE, Verdict.WAIT), {"y": Packed(values, b.ins["x"].lengths)})


async def test_coalesced_items_are_not_lost_and_a_limit_makes_the_source_wait():
    source, sink = Counter(), Relay("sink", pause=0.003)
    edges = (Edge("counter.count", "sink.x", Available(), limit=5), Edge("sink.y", "client.counts", Each()))
    async with running(Paper([source, sink], edges, pieces=count_to), lanes=2) as engine:
        handle = await submit(engine, {"until": 60})
        assert await outputs(handle, "counts") == list(range(1, 61))
    assert max(sink.sizes) <= 5 + 2  # the limit, and what was in flight when it was reached


async def test_a_client_that_does_not_read_stops_the_model():
    edges = (Edge("counter.count", "client.counts", Each(), limit=10),)
    node = Counter()
    async with running(Paper([node], edges, pieces=count_to)) as engine:
        handle = await submit(engine, {"until": 50})
        await asyncio.sleep(0.1)
        assert len(node.launched) <= 12
        assert await outputs(handle, "counts") == list(range(1, 51))


async def test_pieces_reach_the_client_in_order_whatever_finishes_first():
    def pieces(job):
        for until in (30, 2, 9, 1):
            yield Piece("all", {}, until)
        yield Emit("note", Packed.one(["end"]))

    async with running(Paper([Counter()], COUNTS, pieces=pieces, in_flight=3)) as engine:
        got = [o async for o in await submit(engine)]
    counts = [item for o in got if o.port == "counts" for item in o.value]
    assert counts == [*range(1, 31), 1, 2, *range(1, 10), 1]
    assert (got[-1].port, got[-1].value) == ("note", ["end"])


async def test_a_generator_gets_the_result_it_asked_for():
    def pieces(job):
        total = 0
        for until in (3, 4):
            got = yield Piece("all", {}, until, result="counter.count")
            total += int(got.values.sum())
        yield Emit("total", Packed.one([total]))

    async with running(Paper([Counter()], COUNTS, pieces=pieces)) as engine:
        assert await outputs(await submit(engine), "total") == [6 + 10]


async def test_a_generator_that_raises_fails_its_request_only():
    def pieces(job):
        yield Piece("all", {}, 2)
        if job.inputs["bad"]:
            raise RuntimeError("no more")

    async with running(Paper([Counter()], COUNTS, pieces=pieces)) as engine:
        bad, good = await submit(engine, {"bad": True}), await submit(engine, {"bad": False})
        with pytest.raises(StepFailed, match="no more"):
            await outputs(bad, "counts")
        assert await outputs(good, "counts") == [1, 2]
        await settled(engine)


async def test_waiting_too_long_is_a_timeout():
    async with running(Paper([Counter(work=0.01)], COUNTS, pieces=count_to), rows=1, queue_timeout=0.1) as engine:
        first, second = await submit(engine, {"until": 60}), await submit(engine, {"until": 1})
        with pytest.raises(Timeout, match="in the queue"):
            await outputs(second, "counts")
        assert len(await outputs(first, "counts")) == 60


async def test_a_client_that_leaves_stops_its_row_within_a_step():
    node = Counter(work=0.002)
    async with running(Paper([node], COUNTS, pieces=count_to)) as engine:
        async with await submit(engine, {"until": 10_000}) as handle:
            await anext(handle)
        while engine.stats()["requests"]:
            await asyncio.sleep(0.001)
        launched = len(node.launched)
        await asyncio.sleep(0.05)
        assert len(node.launched) <= launched + 2
        await settled(engine)


async def test_stopping_fails_what_still_runs_and_ends_the_threads():
    before = set(threading.enumerate())
    async with running(Paper([Counter(work=0.002)], COUNTS, pieces=count_to)) as engine:
        handle = await submit(engine, {"until": 10_000})
    with pytest.raises(EngineDead):
        await outputs(handle, "counts")
    deadline = time.monotonic() + 5
    while left := [t for t in set(threading.enumerate()) - before if t.name.startswith(("engine", "lane"))]:
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.01)
    assert engine.state == "dead"
    assert engine.stats()["free_slots"]["paper"] == 8


async def test_draining_finishes_what_runs_and_refuses_the_rest():
    async with running(Paper([Counter(work=0.001)], COUNTS, pieces=count_to)) as engine:
        handle = await submit(engine, {"until": 50})
        stopping = asyncio.create_task(engine.stop(5.0))
        assert await outputs(handle, "counts") == list(range(1, 51))
        await stopping


async def test_a_generator_gets_the_results_of_pieces_that_run_together_in_their_order():
    node = Counter()

    def pieces(job):
        for sizes in ((30, 2, 9), (1,), (4, 4)):
            got = yield tuple(Piece("all", {}, until, result="counter.count") for until in sizes)
            yield Emit("sums", Packed.one([int(one.values.sum()) for one in got]))

    async with running(Paper([node], COUNTS, pieces=pieces, in_flight=3)) as engine:
        got = [o async for o in await submit(engine)]
        await settled(engine)
    assert [item for o in got if o.port == "sums" for item in o.value] == [465, 3, 45, 1, 10, 10]
    assert [item for o in got if o.port == "counts" for item in o.value][:32] == [*range(1, 31), 1, 2]
    assert [n for _, n in node.launched[:2]] == [3, 3]


async def test_pieces_that_run_together_may_be_more_than_there_are_slots():
    def pieces(job):
        got = yield tuple(Piece("all", {}, until, result="counter.count") for until in range(1, 7))
        yield Emit("sums", Packed.one([int(one.lengths.sum()) for one in got]))

    async with running(Paper([Counter()], COUNTS, pieces=pieces, in_flight=6), rows=2) as engine:
        handles = [await submit(engine) for _ in range(3)]
        assert await asyncio.gather(*(outputs(h, "sums") for h in handles)) == [[1, 2, 3, 4, 5, 6]] * 3


@pytest.mark.parametrize(
    ("count", "result", "says"),
    [(4, "counter.count", "4 pieces at once; 1 to 3"), (0, None, "0 pieces"), (2, None, "names no result")],
)
async def test_pieces_that_cannot_run_together_fail_their_request(count, result, says):
    def pieces(job):
        yield Emit("note", Packed.one(["begun"]))
        yield tuple(Piece("all", {}, 2, result=result) for _ in range(count))

    async with running(Paper([Counter()], COUNTS, pieces=pieces, in_flight=3)) as engine:
        with pytest.raises(StepFailed, match=says):
            await outputs(await submit(engine), "counts")
        await settled(engine)


async def test_one_of_the_pieces_that_run_together_fails():
    def pieces(job):
        yield tuple(Piece("all", {}, until, result="counter.count") for until in (5, 13, 9))

    async with running(Paper([Poisoned()], COUNTS, pieces=pieces, in_flight=3)) as engine:
        with pytest.raises(StepFailed, match="thirteen"):
            await outputs(await submit(engine), "counts")
        await settled(engine)


async def test_a_request_that_runs_does_not_time_out_in_the_queue():
    """Its next piece may wait for a slot longer than a request may wait for its first."""

    def pieces(job):
        yield tuple(Piece("all", {}, until, result="counter.count") for until in job.inputs["until"])

    node = Counter(work=0.01)
    async with running(Paper([node], COUNTS, pieces=pieces, in_flight=2), rows=1, queue_timeout=0.2) as engine:
        long, other = await submit(engine, {"until": (40, 10)}), await submit(engine, {"until": (1,)})
        assert len(await outputs(long, "counts")) == 50
        with pytest.raises(Timeout, match="in the queue"):
            await outputs(other, "counts")
