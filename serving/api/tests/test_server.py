"""Around the routes: keys, readiness, limits, overload, timeouts, disconnects, errors, metrics, logs."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import httpx
import pytest

from serving.api.logs import JsonLines
from serving.api.tests.fake import FakeEngine, Out, Sleep, answer, client, live, make_app, wait_for
from serving.core.contract import Segment
from serving.errors import EngineDead, Overloaded, StepFailed

PATH = "/v1/audio/transcriptions"
HI = Out("segments", [Segment(0, 1, "Hi")])


def form(tone, **fields):
    return {"files": {"file": ("a.wav", tone)}, "data": {"model": "ears", **fields}}


def code(response):
    return response.json()["error"]["code"]


async def test_models_say_what_they_can_do():
    app, _ = make_app()
    async with client(app) as http:
        listed = (await http.get("/v1/models")).json()
        one = (await http.get("/v1/models/ears")).json()
        missing = await http.get("/v1/models/eers")
    assert listed["object"] == "list"
    assert (one["licence"], one["parity"]) == ("Apache-2.0", "not run")
    assert {"id", "object", "created", "owned_by"} <= set(one)
    assert one["capabilities"]["routes"] == ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/realtime"]
    assert [m["id"] for m in listed["data"]] == ["ears", "plain", "deaf"]
    assert [m["capabilities"]["routes"] for m in listed["data"]][2] == []
    assert (missing.status_code, code(missing)) == (404, "model_not_found")
    assert 'Did you mean "ears"' in missing.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/", "/health", "/health/live", "/health/ready"])
async def test_health_is_public_and_the_rest_is_not(path):
    app, _ = make_app(api_keys=("right", "other"))
    async with client(app) as http:
        assert (await http.get(path)).status_code == 200
        refused = await http.get("/v1/models")
        wrong = await http.get("/v1/models", headers={"authorization": "Bearer wrong"})
        basic = await http.get("/v1/models", headers={"authorization": "Basic right"})
        right = await http.get("/v1/models", headers={"authorization": "Bearer other"})
    assert [refused.status_code, wrong.status_code, basic.status_code, right.status_code] == [401, 401, 401, 200]
    assert refused.headers["www-authenticate"] == "Bearer"
    assert code(refused) == "invalid_api_key"


async def test_ready_is_503_until_the_engine_is_and_after_it_has_died(tone):
    engine = FakeEngine(answer)
    engine.start_seconds = 0.05
    app, _ = make_app(engine)
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://t")
    async with app.router.lifespan_context(app), http:
        starting = await http.get("/health/ready")
        early = await http.post(PATH, **form(tone))
        await app.state.starting
        ready = await http.get("/health/ready")
        engine.state, engine.reason = "dead", "device lost"
        dead = await http.get("/health/ready")
        late = await http.post(PATH, **form(tone))
        live_still = await http.get("/health/live")
    assert (starting.status_code, starting.json()["status"]) == (503, "starting")
    assert (early.status_code, code(early)) == (503, "starting")
    assert ready.status_code == 200
    assert (dead.status_code, dead.json()["status"]) == (503, "engine_dead")
    assert "device lost" in dead.json()["reason"]
    assert (late.status_code, code(late)) == (503, "engine_dead")
    assert live_still.status_code == 200
    assert engine.stopped


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        (Overloaded("full"), 503, "overloaded"),
        (EngineDead("gone"), 503, "engine_dead"),
        (MemoryError(), 503, "out_of_memory"),
        (StepFailed("node"), 500, "step_failed"),
        (RuntimeError("secret detail"), 500, "internal_error"),
    ],
)
async def test_what_the_engine_raises_becomes_a_status(tone, error, status, expected):
    app, engine = make_app(FakeEngine(lambda task: [error]))
    async with client(app) as http:
        running = await http.post(PATH, **form(tone))
        engine.refusal = error
        refused = await http.post(PATH, **form(tone))
    for response in (running, refused):
        assert (response.status_code, code(response)) == (status, expected)
        assert "secret" not in response.text
        assert ("retry-after" in response.headers) == (status == 503)
    assert not engine.running


async def test_a_full_queue_is_refused_at_once_and_the_seats_come_back(tone):
    app, _engine = make_app(FakeEngine(lambda task: [Sleep(0.1), HI]), keys=("ears",), queue_size=1)
    async with client(app) as http:
        responses = await asyncio.gather(*(http.post(PATH, **form(tone)) for _ in range(5)))
        after = await http.post(PATH, **form(tone))
    statuses = sorted(response.status_code for response in responses)
    assert statuses == [200, 200, 200, 503, 503]  # two rows, one in the queue
    refused = next(response for response in responses if response.status_code == 503)
    assert (code(refused), refused.headers["retry-after"]) == ("queue_full", "1")
    assert after.status_code == 200
    assert app.state.api.seats.taken == 0


@pytest.mark.parametrize(("script", "phase"), [([Sleep(5)], "first output"), ([HI, Sleep(5)], "more output")])
async def test_each_phase_has_its_timeout(tone, script, phase):
    timeouts = {"first_output": 0.05, "idle_output": 0.05}
    app, engine = make_app(FakeEngine(lambda task: script), timeouts=timeouts)
    async with client(app) as http:
        response = await http.post(PATH, **form(tone))
    assert (response.status_code, code(response)) == (504, "timeout")
    assert phase in response.json()["error"]["message"]
    assert engine.cancelled
    assert not engine.running


@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_client_that_leaves_cancels_its_request(tone, stream):
    app, engine = make_app(FakeEngine(lambda task: [HI, Sleep(60)]))
    with live(app) as url:
        leaving = httpx.stream("POST", url + PATH, timeout=0.3, **form(tone, stream=stream))
        with pytest.raises(httpx.ReadTimeout), leaving as response:
            response.read()
        wait_for(lambda: not engine.running)
        assert len(engine.cancelled) == 1
        wait_for(lambda: app.state.api.seats.taken == 0)
        text = httpx.get(url + "/metrics").text
    assert 'toolkit_aborts_total{model="ears",route="/v1/audio/transcriptions"} 1.0' in text


def test_a_finished_request_is_never_aborted(tone):
    app, engine = make_app()
    with live(app) as url:
        for stream in ("false", "true"):
            assert httpx.post(url + PATH, **form(tone, stream=stream)).status_code == 200
    assert engine.cancelled == []


async def test_a_body_over_the_limit_is_a_413_without_trusting_its_length(tone):
    app, engine = make_app(limits={"upload_bytes": 1000})
    async with client(app) as http:
        declared = await http.post(PATH, **form(tone))

        async def endless():
            yield b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
            while True:
                yield b"x" * 512

        boundary = {"content-type": "multipart/form-data; boundary=b"}
        streamed = await http.post(PATH, content=endless(), headers=boundary)
    assert [declared.status_code, streamed.status_code] == [413, 413]
    assert code(declared) == code(streamed) == "body_too_large"
    assert not engine.submitted


async def test_a_body_that_stalls_is_given_up():
    app, _ = make_app(timeouts={"body": 0.05})

    async def stalling():
        yield b"--b\r\n"
        await asyncio.sleep(5)

    async with client(app) as http:
        headers = {"content-type": "multipart/form-data; boundary=b"}
        response = await http.post(PATH, content=stalling(), headers=headers)
    assert (response.status_code, code(response)) == (504, "body_timeout")


@pytest.mark.parametrize(
    ("method", "path", "status", "expected"),
    [("GET", "/nowhere", 404, "unknown_route"), ("GET", PATH, 405, "method_not_allowed")],
)
async def test_starlettes_refusals_wear_the_envelope(method, path, status, expected):
    app, _ = make_app()
    async with client(app) as http:
        response = await http.request(method, path)
    assert (response.status_code, code(response)) == (status, expected)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


async def test_server_info_shows_limits_and_no_secret():
    app, _ = make_app(api_keys=("hunter2",), limits={"n": 3})
    async with client(app, headers={"authorization": "Bearer hunter2"}) as http:
        response = await http.get("/v1/server_info")
    assert response.json()["limits"]["n"] == 3
    assert response.json()["models"]["ears"]["numerics"] == "fast"
    assert response.json()["models"]["ears"]["capture"] == "eager"
    assert "hunter2" not in response.text


async def test_logs_carry_the_request_id_and_nothing_private(tone, caplog):
    app, _ = make_app(api_keys=("hunter2",))
    caplog.handler.setFormatter(JsonLines())
    with caplog.at_level(logging.INFO, "toolkit.access"):
        async with client(app, headers={"authorization": "Bearer hunter2", "x-client-request-id": "mine-1"}) as http:
            response = await http.post(PATH, **form(tone, prompt="my secret"))
    (line,) = [json.loads(text) for text in caplog.handler.stream.getvalue().splitlines()]
    assert line["client_request_id"] == "mine-1"
    assert (line["route"], line["model"], line["status"]) == (PATH, "ears", 200)
    assert "hunter2" not in caplog.handler.stream.getvalue()
    assert "secret" not in caplog.handler.stream.getvalue()
    assert line["request_id"] == response.headers["x-request-id"]


async def test_the_openapi_page_has_one_alternative_a_model():
    app, _ = make_app()
    async with client(app) as http:
        page = (await http.get("/openapi.json")).json()
    body = page["paths"][PATH]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    by_model = {schema["title"]: schema for schema in body["oneOf"]}
    assert set(by_model) == {"ears", "plain"}
    assert "beam_size" in by_model["ears"]["properties"]
    assert "language" not in by_model["plain"]["properties"]
    assert by_model["plain"]["required"] == ["model", "file"]


async def test_every_reference_of_the_openapi_page_resolves():
    app, _ = make_app(keys=("ears", "mouth", "talker", "painter", "filmer", "actor"))
    async with client(app) as http:
        text = (await http.get("/openapi.json")).text
    page = json.loads(text)
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert references <= set(page["components"]["schemas"])
    assert "Chat.Message" in references
    assert "#/$defs" not in text
    for path, operations in page["paths"].items():
        for operation in operations.values():
            assert [one["name"] for one in operation["parameters"]] == re.findall(r"{(\w+)}", path)
