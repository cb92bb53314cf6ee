"""The toy behind the real engine and the real routes: what a client hears is what the nodes made, and nothing stays."""

from __future__ import annotations

import asyncio
import base64
import io
import random
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from serving.api.media.decode import decode_audio
from serving.settings import Limits, ServerSettings, Timeouts
from toolkit.deploy import build, deployments

TEXT = "Good morning. A light wind will blow from the west. Then the rain begins."


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@asynccontextmanager
async def toy(**settings):
    app = build(deployments(["toy"], numerics="invariant", max_concurrent_requests=4), ServerSettings(**settings))
    async with app.router.lifespan_context(app):
        await app.state.starting
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://toy") as http:
            yield app, http


def speech(**fields):
    return {"model": "toy", "input": TEXT, "response_format": "pcm", "seed": 1, **fields}


async def pcm(http, **fields):
    response = await http.post("/v1/audio/speech", json=speech(**fields))
    assert response.status_code == 200, response.text
    return response.content


def free(app):
    """What the engine has to give out, by pool."""
    stats = app.state.api.engine.stats()
    return stats["requests"], stats["free_slots"]


async def settled(app, resting):
    """Wait until everything is free again."""
    for _ in range(200):
        if free(app) == resting and app.state.api.seats.taken == 0:
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"left behind: {free(app)}, at rest {resting}")


async def test_speech_is_the_same_whole_streamed_alone_and_among_others():
    async with toy() as (_, http):
        alone = await pcm(http)
        streamed = await pcm(http, stream=True)
        wav = await http.post("/v1/audio/speech", json=speech(response_format="wav", stream=True))
        among = await asyncio.gather(*(pcm(http, stream=i % 2 == 0) for i in range(6)))
        other = await pcm(http, voice="high")
    assert len(alone) > 200
    assert streamed == alone
    assert set(among) == {alone}
    assert other != alone
    samples = decode_audio(io.BytesIO(wav.content), Limits()).samples[0]
    np.testing.assert_array_equal((samples * 32768).astype("<i2"), np.frombuffer(alone, "<i2"))


async def test_metrics_of_a_real_engine():
    """Every step is timed once, and at rest every page and slot is free."""
    async with toy() as (app, http):
        resting = free(app)
        await pcm(http)
        await settled(app, resting)
        text = (await http.get("/metrics")).text
        counts = app.state.api.engine.stats()["steps"]
    found = {f"{s.name}{sorted(s.labels.items())}": s for f in text_string_to_metric_families(text) for s in f.samples}
    for node in ("lm", "codec"):
        timed = sum(
            s.value
            for s in found.values()
            if s.name == "toolkit_step_seconds_count" and s.labels["node"] == node and s.labels["model"] == "toy"
        )
        assert timed == counts[f"toy.{node}"] > 0
    free_now = {s.labels["pool"]: s.value for s in found.values() if s.name == "toolkit_pool_free"}
    capacity = {s.labels["pool"]: s.value for s in found.values() if s.name == "toolkit_pool_capacity"}
    assert set(free_now) == {"kv", "filter", "memory"}
    assert free_now == capacity


async def test_pictures_follow_their_seed():
    async def pictures(http, **fields):
        asked = {"model": "toy", "prompt": "a cat", "size": "16x8", **fields}
        made = (await http.post("/v1/images/generations", json=asked)).json()
        return [np.asarray(Image.open(io.BytesIO(base64.b64decode(one["b64_json"])))) for one in made["data"]]

    async with toy() as (_, http):
        two = await pictures(http, n=2, seed=7)
        first, second = await pictures(http, seed=7), await pictures(http, seed=8)
        refused = await http.post("/v1/images/generations", json={"model": "toy", "prompt": "x", "size": "9x9"})
    assert two[0].shape == (8, 16, 3)
    np.testing.assert_array_equal(two[0], first[0])
    np.testing.assert_array_equal(two[1], second[0])
    assert not np.array_equal(two[0], two[1])
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "size")


async def test_the_ports_own_refusals_are_400s():
    async with toy() as (app, http):
        resting = free(app)
        long = await http.post("/v1/audio/speech", json=speech(max_new_tokens=256, input="x" * 2000))
        await settled(app, resting)
    assert (long.status_code, long.json()["error"]["param"]) == (400, "max_new_tokens")


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.nightly)])
async def test_clients_that_leave_at_random_moments_leave_nothing(count):
    draw = random.Random(0)
    before = set(Path(tempfile.gettempdir()).iterdir())
    async with toy(queue_size=16, timeouts=Timeouts(slow_client=5)) as (app, http):
        resting = free(app)

        async def one():
            try:
                async with asyncio.timeout(draw.choice([0.0, 0.001, 0.01, 0.05, 0.2, 5.0])):
                    fields = speech(stream=draw.random() < 0.5, max_new_tokens=draw.choice([1, 24, 60]))
                    return (await http.post("/v1/audio/speech", json=fields)).status_code
            except TimeoutError:
                return None

        statuses = []
        while len(statuses) < count:
            statuses += await asyncio.gather(*(one() for _ in range(6)))
        await settled(app, resting)
        assert len(await pcm(http)) > 200
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert len(tasks) <= 2, tasks
    assert set(statuses) <= {None, 200, 503}
    assert None in statuses
    assert 200 in statuses
    assert {path for path in set(Path(tempfile.gettempdir()).iterdir()) - before if "tmp" in path.name} == set()
