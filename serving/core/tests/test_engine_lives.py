"""Random lives of requests on the engine's own threads: read at any pace, cancelled, failed, in one or more pieces.

Whatever happens, each request that stays gets exactly what it would get alone, in order; a failed one says so; and
in the end every page, slot and map is empty.
"""

import asyncio
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serving.core.contract import Edge, Need, Node, Offer, Packed, Piece, Settled, Verdict
from serving.core.streams import Each, Ramp
from serving.core.tests.kit import Paper, running, settled, submit
from serving.errors import Cancelled, StepFailed
from serving.resources import PagedKV, Sampler, SamplingParams

ROWS, MOST = 4, 24
POISON = 13


@dataclass(frozen=True)
class Part:
    """A piece: a prompt of some length, then so many steps."""

    prompt: int
    until: int


class Speaker(Node):
    """Prefill in parts, then a loop that runs ahead. Each item says where the cache stood when it was made."""

    name, writes, budget = "speaker", ("kv", "sampler"), 6
    LOOP = Offer(("loop",), repeats=True)

    def __init__(self, sampler):
        self.sampler = sampler
        self.left = np.zeros(ROWS + 1, np.int64)
        self.bad = np.zeros(ROWS + 1, bool)

    def begin(self, row):
        self.left[row.slot] = row.knobs.until
        self.bad[row.slot] = row.knobs.until == POISON
        self.sampler.set(row.slot, SamplingParams(temperature=1.0), seed=row.seed)

    def offer(self, row):
        chunk = row.chunks["prompt"]
        if chunk is not None:
            return Offer(("loop",), chunk.stop - chunk.fresh, 1, take=("prompt",))
        return self.LOOP if row.ended["prompt"] else None

    def launch(self, b):
        if (self.bad[b.index] & (self.left[b.index] < 5)).any():
            raise ValueError("poison")
        kv = b.use["kv"]
        x = kv.positions.float()[:, None, None].expand(-1, 1, 8)
        kv.attend(0, x, x, x)
        token = b.use["sampler"](torch.zeros(b.size, 97))
        return {"at": torch.stack([kv.positions[kv.last], token], 1)}

    def settle(self, b, out):
        spoke = np.ones(b.n, bool)
        if b.taken:
            spoke = np.array([chunk is None or chunk.final for chunk in b.taken["prompt"]])
        self.left[b.index] -= spoke
        done = spoke & (self.left[b.index] <= 0)
        items = Packed(out["at"][: b.n][spoke], spoke.astype(np.int64))
        return Settled(Verdict.until(done), {"at": items})


class Voice(Node):
    """Windows of what was said, passed on."""

    name = "voice"

    def offer(self, row):
        return None if row.chunks["x"] is None else Offer(("window",), take=("x",))

    def launch(self, b):
        return {}

    def settle(self, b, out):
        chunks = b.chunks("x")
        parts = [b.ins["x"].row(i)[c.fresh - c.start : c.stop - c.start] for i, c in enumerate(chunks)]
        values = np.concatenate(parts) if parts else np.zeros((0, 2), np.int64)
        lengths = np.array([c.stop - c.fresh for c in chunks])
        verdicts = np.where([c.final for c in chunks], Verdict.DONE, Verdict.WAIT)
        return Settled(verdicts, {"y": Packed(values, lengths)})


def model():
    sampler = Sampler(slots=ROWS, vocab=97)
    kv = PagedKV(layers=1, kv_heads=1, head_dim=8, page_size=4, pages=ROWS * 10, slots=ROWS, max_len=40)
    edges = (
        Edge("speaker.at", "voice.x", Ramp((2, 3), 5, context=1, lookahead=1), limit=7),
        Edge("voice.y", "client.out", Each(), limit=9),
    )

    def pieces(job):
        for part in job.inputs["parts"]:
            inputs = {"speaker.prompt": Packed.one(np.zeros(part.prompt, np.int64))}
            yield Piece("all", inputs, part, needs={"kv": Need(part.prompt + part.until + 1)})

    nodes = (Speaker(sampler), Voice())
    return Paper(nodes, edges, resources={"kv": kv, "sampler": sampler}, pieces=pieces, in_flight=2)


PART = st.builds(Part, st.integers(1, 9), st.integers(1, MOST))
LIFE = st.tuples(
    st.lists(PART, min_size=1, max_size=3),
    st.sampled_from(["stays", "stays", "slow", "leaves at once", "leaves"]),
    st.integers(0, 6),  # outputs read before it leaves
    st.integers(0, 3),  # a seed
)


async def live(engine, life):
    """One client: what it got, or the error that it was told."""
    parts, manner, reads, seed = life
    handle = await submit(engine, {"parts": parts}, seed=seed)
    got = []
    if manner == "leaves at once":
        handle.cancel()
    try:
        async for output in handle:
            got += [tuple(item) for item in output.value]
            if manner == "slow":
                await asyncio.sleep(0.001)
            if manner == "leaves" and (reads := reads - 1) <= 0:
                break
    except (Cancelled, StepFailed) as error:
        return got, type(error)
    finally:
        handle.cancel()
    return got, None


def positions(parts):
    return [part.prompt - 1 + step for part in parts for step in range(part.until)]


async def gone(engine):
    """Until the engine has heard of everyone who left: their last piece may be over before they are."""
    deadline = asyncio.get_running_loop().time() + 10
    while engine.stats()["requests"]:
        assert asyncio.get_running_loop().time() < deadline, engine.stats()
        await asyncio.sleep(0.002)


async def scenario(engine, paper, lives):
    alone = {}
    for life in lives:
        parts, _, _, seed = life
        if not any(part.until == POISON for part in parts):
            alone[str((parts, seed))] = (await live(engine, (parts, "stays", 0, seed)))[0]
    found = await asyncio.gather(*(live(engine, life) for life in lives))
    for (parts, manner, _, seed), (got, error) in zip(lives, found, strict=True):
        poisoned = any(part.until == POISON for part in parts)
        expected = positions(parts)
        assert [at for at, _ in got] == expected[: len(got)]
        if manner in ("stays", "slow"):
            assert (error is StepFailed) == poisoned
            assert poisoned or got == alone[str((parts, seed))]
            assert poisoned or len(got) == len(expected)
    await settled(engine, ROWS)
    await gone(engine)
    kv, sampler = paper.graph.resources["kv"], paper.graph.resources["sampler"]
    assert kv.pages.free == kv.capacity
    assert not kv._held
    assert not sampler._owners
    assert all(not n.live and not n.groups and not n.inflight for n in engine.models["paper"].nodes.values())


@pytest.fixture(scope="module")
def loop():
    made = asyncio.new_event_loop()
    yield made
    made.close()


@pytest.fixture(scope="module")
def stage(loop):
    """One engine for all examples, so that what one leaves behind would show in the next."""
    paper = model()
    context = running(paper, rows=ROWS)
    yield loop.run_until_complete(context.__aenter__()), paper
    loop.run_until_complete(context.__aexit__(None, None, None))


@settings(
    max_examples=max(25, settings.default.max_examples // 4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(lives=st.lists(LIFE, min_size=1, max_size=7))
def test_every_life_ends_well(loop, stage, lives):
    engine, paper = stage
    loop.run_until_complete(asyncio.wait_for(scenario(engine, paper, lives), 60))
