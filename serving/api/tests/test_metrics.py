"""`/metrics`: every name, and values that a scripted engine and a hand-driven clock make known."""

from __future__ import annotations

import re
import threading
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.api.app import build_app
from serving.api.metrics import Metrics
from serving.api.playing import Playing
from serving.api.tests.fake import FakeEngine, Out, Sleep, client, live, loaded, make_app, wait_for
from serving.core.contract import Resource
from serving.settings import ServerSettings

SPEECH = "/v1/audio/speech"
SECOND = Out("audio", np.full(24_000, 0.1, np.float32))


def samples(text):
    """Sample name -> labels (sorted pairs) -> value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            found.setdefault(one.name, {})[tuple(sorted(one.labels.items()))] = one.value
    return found


def labels(**pairs):
    return tuple(sorted(pairs.items()))


def speech_app(*script):
    return make_app(FakeEngine(lambda task: script), keys=("mouth",))


def said(**fields):
    return {"json": {"model": "mouth", "input": "Hello.", "response_format": "pcm", **fields}}


async def scraped(http):
    return samples((await http.get("/metrics")).text)


async def test_tokens_of_answers():
    facts = Out("info", {"input_tokens": 9, "output_tokens": 4})
    app, _ = make_app(FakeEngine(lambda task: [facts]), keys=("talker",))
    asked = {"model": "talker", "messages": [{"role": "user", "content": "Hello"}]}
    async with client(app) as http:
        await http.post("/v1/chat/completions", json=asked | {"n": 2})
        await http.post("/v1/chat/completions", json=asked | {"stream": True})
        found = await scraped(http)
    assert found["toolkit_output_tokens_total"] == {labels(route="/v1/chat/completions", model="talker"): 12}


async def test_requests_by_route_model_and_status():
    app, _ = speech_app(SECOND, SECOND)
    async with client(app) as http:
        await http.post(SPEECH, **said())
        await http.post(SPEECH, **said(stream=True))
        await http.post(SPEECH, **said(speed=9))
        await http.post("/generate", json={"model": "mouth"})
        found = await scraped(http)
    mouth = {"route": SPEECH, "model": "mouth"}
    assert found["toolkit_requests_total"] == {
        labels(**mouth, status="200"): 2,
        labels(**mouth, status="400"): 1,
        labels(route="/generate", model="", status="404"): 1,
    }
    assert found["toolkit_audio_out_seconds_total"] == {labels(**mouth): 4}
    assert found["toolkit_request_seconds_count"][labels(**mouth)] == 3
    assert found["toolkit_in_flight"][labels(route=SPEECH)] == 0


async def test_streams_are_timed_and_whole_answers_are_not():
    app, _ = speech_app(SECOND, Sleep(0.05), SECOND)
    async with client(app) as http:
        await http.post(SPEECH, **said())
        assert "toolkit_first_audio_seconds_count" not in await scraped(http)
        await http.post(SPEECH, **said(stream=True))
        found = await scraped(http)
    mouth = labels(route=SPEECH, model="mouth")
    assert found["toolkit_first_audio_seconds_count"][mouth] == 1
    assert found["toolkit_first_output_seconds_count"][mouth] == 1
    assert found["toolkit_chunk_gap_seconds_count"][mouth] == 1
    assert 0.05 <= found["toolkit_chunk_gap_seconds_sum"][mouth] < 2
    assert found["toolkit_first_audio_seconds_sum"][mouth] <= found["toolkit_first_output_seconds_sum"][mouth]


def test_underruns_are_counted_as_a_player_hears_them(monkeypatch):
    """Chunks of one second: the third comes 0.5 s after the second has been played, the others in time."""
    metrics, now = Metrics(dict), SimpleNamespace(value=10.0)
    monkeypatch.setattr("serving.api.playing.time", SimpleNamespace(monotonic=lambda: now.value))
    playing = Playing(metrics, ("r", "m"), arrived=9.75)
    for at in (10.0, 10.5, 12.5, 13.4, 14.4):
        now.value = at
        playing.chunk(1.0)
    found = samples(metrics.text().decode())
    assert found["toolkit_underruns_total"] == {labels(route="r", model="m"): 1}
    assert found["toolkit_first_audio_seconds_sum"] == {labels(route="r", model="m"): 0.25}
    assert found["toolkit_audio_out_seconds_total"] == {labels(route="r", model="m"): 5}


def test_a_client_that_leaves_is_an_abort():
    app, engine = speech_app(SECOND, Sleep(30))
    with live(app) as url:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url + SPEECH, **said(), timeout=0.3)
        wait_for(lambda: engine.cancelled)
        wait_for(lambda: not engine.running and app.state.api.seats.taken == 0)
        found = samples(httpx.get(url + "/metrics").text)
    mouth = {"route": SPEECH, "model": "mouth"}
    assert found["toolkit_aborts_total"] == {labels(**mouth): 1}
    assert found["toolkit_requests_total"][labels(**mouth, status="499")] == 1


async def test_the_engines_counts():
    app, _ = make_app()  # its engine says: three wait, one slot of two is free, five steps, two misses
    async with client(app) as http:
        found = await scraped(http)
        app.state.api.engine.state = "dead"
        dead = await scraped(http)
    assert found["toolkit_waiting"] == {labels(model="ears"): 3}
    assert found["toolkit_running"] == {labels(model="ears"): 1}
    assert found["toolkit_steps_total"] == {labels(model="ears", node="decoder"): 5}
    assert found["toolkit_capture_misses_total"] == {labels(model="ears", node="decoder"): 2}
    assert (found["toolkit_ready"][()], dead["toolkit_ready"][()]) == (1, 0)


def step(node, size, seconds, rows=1, units=1):
    return SimpleNamespace(model="toy", node=node, rows=rows, size=size, units=units, seconds=seconds)


def test_steps_are_counted_once_by_node_and_bucket():
    traces = [step("lm", 1, 0.01), step("lm", 4, 0.03, rows=3, units=12)]
    metrics = Metrics(dict, lambda: traces)
    metrics.steps.fold()
    traces.append(step("codec", 4, 0.5, rows=2, units=8))
    del traces[0]  # the engine keeps so many and no more
    metrics.steps.fold()
    found = samples(metrics.text().decode())
    of = found["toolkit_step_seconds_count"]
    assert of[labels(model="toy", node="lm", bucket="1")] == 1
    assert of[labels(model="toy", node="lm", bucket="4")] == 1
    assert found["toolkit_step_seconds_sum"][labels(model="toy", node="codec", bucket="4")] == 0.5
    assert found["toolkit_step_rows_total"] == {labels(model="toy", node="lm"): 4, labels(model="toy", node="codec"): 2}
    assert found["toolkit_step_units_total"][labels(model="toy", node="lm")] == 13


def test_steps_are_read_while_the_engine_adds_to_them():
    traces, stop = deque(maxlen=4096), threading.Event()
    metrics = Metrics(dict, lambda: traces)

    def run():
        while not stop.is_set():
            traces.append(step("lm", 1, 0.01))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(5):
            metrics.steps.fold()
    finally:
        stop.set()
        thread.join()


class Pages(Resource):
    capacity, free, unit = 12, 9, "pages"


class Slots(Resource):
    capacity, free, unit = 4, 3, "slots"


async def test_pools_show_what_is_free():
    models = loaded("mouth")
    models[0].model.graph = SimpleNamespace(resources={"kv": Pages(), "memory": Slots(), "sampler": Resource()})
    app = build_app(models, ServerSettings(), FakeEngine())
    async with client(app) as http:
        found = await scraped(http)
    kv = labels(model="mouth", pool="kv", unit="pages")
    memory = labels(model="mouth", pool="memory", unit="slots")
    assert found["toolkit_pool_free"] == {kv: 9, memory: 3}
    assert found["toolkit_pool_capacity"] == {kv: 12, memory: 4}


async def test_the_page_names_every_metric_and_its_labels():
    """In both directions: what the page lists exists, what exists is listed."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "http.md").read_text(encoding="utf-8")
    listed = {
        name: set(filter(None, marks.strip().split(", ")))
        for name, marks in re.findall(r"^\| `(toolkit_\w+)` \|([^|]*)\|", page, re.MULTILINE)
    }
    metrics = Metrics(dict, lambda: [step("lm", 1, 0.01)])
    metrics.text()
    shown = {}
    for family in metrics.registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        shown[name] = {label for one in family.samples for label in one.labels} - {"le"}
    assert set(listed) == set(shown)
    assert {name: listed[name] for name, marks in shown.items() if marks} == {n: m for n, m in shown.items() if m}
