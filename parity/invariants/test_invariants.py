"""What must hold for every key, bit for bit, in `invariant` numerics. A key is covered by being registered."""

import asyncio

import numpy as np
import pytest

from models import registry
from parity.invariants.kit import alone, engine, keys, numbers, tasks, together
from serving.errors import Cancelled

every_key = pytest.mark.parametrize("key", keys())


@every_key
async def test_a_request_among_others_is_the_request_alone(key):
    work = tasks(key)
    async with engine(key) as made:
        assert await together(made, key, work * 2) == 2 * await alone(made, key, work)


@every_key
async def test_padding_and_static_buffers_change_nothing(key):
    work = tasks(key)
    async with engine(key) as eager, engine(key, "static") as static:
        assert await together(static, key, work) == await alone(eager, key, work)


@every_key
async def test_a_seed_is_the_same_in_another_engine(key):
    work = tasks(key)[:2]
    async with engine(key, rows=3) as first, engine(key, rows=8) as second:
        assert await alone(first, key, work) == await alone(second, key, work)


@every_key
async def test_requests_that_leave_do_not_touch_those_that_stay(key):
    work = tasks(key)

    async def leave(made, task, outputs):
        async with await made.submit(key, task, request_id=f"leaves{next(numbers)}", seed=9) as handle:
            for _ in range(outputs):
                try:
                    await anext(handle, None)
                except Cancelled:
                    return

    async with engine(key) as made:
        expected = await alone(made, key, work)
        stay = asyncio.create_task(together(made, key, work))
        await asyncio.gather(*(leave(made, task, n) for n, task in enumerate(work)))
        assert await stay == expected
        deadline = asyncio.get_running_loop().time() + 30
        while made.stats()["free_slots"][key] < 8:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
        for resource in made.models[key].graph.resources.values():
            assert not getattr(resource, "_held", None)


async def test_toy_with_a_neighbour_that_leaks_into_it_is_caught(monkeypatch):
    """The control: a launch in which rows see one another breaks the first invariant."""
    key = "toy"
    family = registry.load(key).model.graph.nodes["lm"]
    launch = type(family).launch

    def leaky(self, b):
        out = launch(self, b)
        self.last[b.slots] = (out["token"] + (b.n > 3)) % self.c.vocab
        return out

    monkeypatch.setattr(type(family), "launch", leaky)
    work = [task for task in tasks(key) if task.kind == "speak"]
    async with engine(key) as made:
        assert await together(made, key, work * 2) != 2 * await alone(made, key, work)


async def test_toy_bits_are_what_is_compared():
    """The control of the comparison itself: one unit in the last place is seen."""
    key = "toy"
    async with engine(key) as made:
        (first,) = await alone(made, key, tasks(key)[:1])
    dtype, shape, data = first["audio"]
    moved = np.frombuffer(data, dtype).copy()
    moved[5] = np.nextafter(moved[5], np.float32(9))
    assert (dtype, shape, moved.tobytes()) != first["audio"]
