"""What must hold for every key, bit for bit, in `invariant` numerics. A key is covered by being registered."""

import asyncio

import httpx
import numpy as np
import pytest

from models import registry
from oracles.speech import clips
from parity.invariants.kit import alone, engine, keys, numbers, tasks, together, unsettled
from perf.launch import running, toolkit
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


@pytest.mark.parametrize("key", ["toy", "whisper_tiny_en"])
async def test_a_request_that_makes_room_and_comes_back_is_the_request_alone(key):
    work = tasks(key)[:4]
    async with engine(key) as made:
        expected = await alone(made, key, work)
        assert await unsettled(made, key, work) == expected
        assert made.stats()["preemptions"][key] > len(work)


async def test_toy_computes_again_what_it_gave_up():
    """The other way back: from the prompt and what was said."""
    work = [task for task in tasks("toy") if task.kind == "speak"]
    async with engine("toy", model={"preempt": "recompute"}) as made:
        assert await unsettled(made, "toy", work) == await alone(made, "toy", work)


async def test_toy_that_was_heard_before_is_itself():
    """A hit in the prefix cache and a miss, and pages shared between requests that run at once."""
    work = [task for task in tasks("toy") if task.kind == "speak"]
    async with engine("toy") as made:
        first = await alone(made, "toy", work)
        missed = made.stats()["reused_tokens"]["toy"]
        assert await together(made, "toy", work * 2) == first * 2
        assert made.stats()["reused_tokens"]["toy"] > missed


def _speech(server):
    fields = {"model": "toy", "input": "Two of a kind. One more.", "voice": "low", "seed": 5, "response_format": "pcm"}
    return server.post("/v1/audio/speech", json={**fields, "temperature": 1.0})


def _transcription(server):
    fields = {"model": "whisper_tiny_en", "response_format": "verbose_json"}
    with open(clips()[0].path, "rb") as sound:
        return server.post("/v1/audio/transcriptions", data=fields, files={"file": ("clip.wav", sound)})


@pytest.mark.parametrize(("key", "ask"), [("toy", _speech), ("whisper_tiny_en", _transcription)])
def test_two_server_processes_answer_alike(key, ask, tmp_path):
    answers = []
    for name in ("first", "second"):
        with running(toolkit(key, "--numerics", "invariant"), tmp_path / name) as server:
            with httpx.Client(base_url=server.target.url, timeout=120) as http:
                answer = ask(http)
            assert answer.status_code == 200, answer.text
            answers.append(answer.content)
    assert answers[0] == answers[1]
    assert len(answers[0]) > 100


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
