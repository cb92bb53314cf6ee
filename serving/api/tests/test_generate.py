"""`/generate` and `/generate/ws`."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from websockets.sync.client import connect

from serving.api.protocol.generate import Array, to_json
from serving.api.tests.fake import FakeEngine, Out, Sleep, client, live, make_app, wait_for
from serving.core.contract import Segment
from serving.errors import BadRequest, StepFailed

PATH = "/generate"
ACTION = np.arange(6, dtype=np.float32).reshape(2, 3)
KEYS = ("actor", "thinker")


def acting(task):
    return [Out("action", ACTION), Out("note", "done"), Out("action", ACTION + 1), Out("info", {"steps": np.int64(2)})]


def app_of(script=acting, **settings):
    return make_app(FakeEngine(script), keys=KEYS, **settings)


def array(values):
    return to_json(np.asarray(values))


def restored(shown):
    return Array(**shown).load("x")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32", "int64", "uint8", "bool"])
def test_arrays_survive_json(dtype):
    values = np.array([[0, 1], [1, 0], [1, 1]], dtype)
    again = restored(json.loads(json.dumps(to_json(values))))
    np.testing.assert_array_equal(again, values)
    assert again.dtype == dtype


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"shape": [7]}, "not base64"),
        ({"data": "@"}, "not base64"),
        ({"shape": []}, "not base64"),
        ({"shape": [2, 2]}, "not base64"),
    ],
)
def test_an_array_whose_bytes_do_not_fit_is_a_400(change, says):
    with pytest.raises(BadRequest, match=says):
        restored({**array(np.zeros(6, np.float32)), **change})
    with pytest.raises(BadRequest, match="not finite"):
        restored(array(np.array([np.nan], np.float32)))


def test_dataclasses_become_json():
    assert to_json([Segment(0, 1, "Hi")])[0]["text"] == "Hi"


async def test_outputs_come_by_port():
    app, engine = app_of()
    async with client(app) as http:
        response = await http.post(PATH, json={"model": "actor", "text": "go", "gain": 2.0, "seed": 5})
    made = response.json()
    assert [restored(item).tolist() for item in made["outputs"]["action"]] == [ACTION.tolist(), (ACTION + 1).tolist()]
    assert (made["outputs"]["note"], made["info"]) == (["done"], {"steps": 2})
    assert engine.submitted[0].task.inputs == {"text": "go"}
    assert (engine.submitted[0].task.knobs.gain, engine.submitted[0].seed) == (2.0, 5)


async def test_ndjson_ends_in_done_or_in_an_error():
    app, engine = app_of()
    async with client(app) as http:
        good = await http.post(PATH, json={"model": "actor", "stream": True})
        engine.script = lambda task: [Out("action", ACTION), StepFailed("node raised")]
        bad = await http.post(PATH, json={"model": "actor", "stream": True})
    kinds = [[json.loads(line)["type"] for line in response.text.splitlines()] for response in (good, bad)]
    assert kinds == [["output", "output", "output", "output", "done"], ["output", "error"]]
    assert good.headers["content-type"] == "application/x-ndjson"


async def test_sound_comes_as_a_file_or_a_data_url(tone):
    app, engine = app_of()
    url = "data:audio/wav;base64," + base64.b64encode(tone).decode()
    async with client(app) as http:
        await http.post(PATH, data={"model": "actor"}, files={"audio": tone})
        await http.post(PATH, json={"model": "actor", "audio": url})
        refused = await http.post(PATH, json={"model": "thinker", "audio": url})
    first, second = (handle.task.inputs["audio"] for handle in engine.submitted)
    np.testing.assert_array_equal(first.samples, second.samples)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "audio")


@pytest.fixture
def socket():
    """A connection and the engine behind it; the script waits until the test lets it go on."""
    app, engine = app_of(limits={"message_bytes": 10_000})
    with live(app) as url, connect(url.replace("http", "ws") + "/generate/ws") as made:
        yield made, engine
    assert not engine.running
    assert app.state.api.seats.taken == 0


def ask(socket, **message):
    socket.send(json.dumps(message))


def hear(socket):
    return json.loads(socket.recv(timeout=5))


def test_one_connection_serves_one_request_after_another(socket):
    made, engine = socket
    for _ in range(2):
        ask(made, type="open", model="actor", text="go")
        assert [hear(made)["type"] for _ in range(5)] == ["output"] * 4 + ["done"]
    assert len({handle.request_id for handle in engine.submitted}) == 2
    assert engine.cancelled == []


def test_appends_reach_the_streams_and_run_ahead(socket):
    made, engine = socket
    engine.script = lambda task: [Sleep(0.2), Out("action", ACTION)]
    ask(made, type="open", model="actor")
    for part in ([1.0, 2.0], [3.0]):
        ask(made, type="append", port="audio_in", array=array(np.array(part, np.float32)))
    ask(made, type="end_input", port="audio_in")
    assert hear(made)["type"] == "output"
    assert hear(made)["type"] == "done"
    (handle,) = engine.submitted
    assert [(port, packed.values.tolist()) for port, packed in handle.appended] == [
        ("audio_in", [1, 2]),
        ("audio_in", [3]),
    ]
    assert handle.finished == ["audio_in"]


def test_cancel_ends_the_request_and_not_the_connection(socket):
    made, engine = socket
    engine.script = lambda task: [Sleep(30)]
    ask(made, type="open", model="actor")
    ask(made, type="cancel")
    assert hear(made) == {"type": "cancelled"}
    assert engine.cancelled == [engine.submitted[0].request_id]
    engine.script = acting
    ask(made, type="open", model="actor")
    assert hear(made)["type"] == "output"
    for _ in range(4):
        hear(made)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"type": "append"}, '"open"'),
        ({"type": "open"}, "model"),
        ({"type": "open", "model": "acter"}, 'Did you mean "actor"'),
        ({"type": "open", "model": "actor", "gan": 1}, 'Did you mean "gain"'),
        ({"type": "open", "model": "actor", "gain": 0}, "greater than 0"),
        ({"type": "open", "model": "actor", "session": "../x"}, "session"),
    ],
)
def test_a_bad_opening_is_told_and_the_connection_lives(socket, message, says):
    made, engine = socket
    made.send(json.dumps(message))
    error = hear(made)
    assert error["type"] == "error"
    assert says in error["error"]["message"]
    assert not engine.submitted
    ask(made, type="open", model="actor")
    assert [hear(made)["type"] for _ in range(5)][-1] == "done"


@pytest.mark.parametrize("data", ["{", "[]", "1", "x" * 20_000])
def test_a_message_that_is_no_object_is_told(data):
    app, _ = app_of(limits={"message_bytes": 10_000})
    with live(app) as url, connect(url.replace("http", "ws") + "/generate/ws") as made:
        made.send(data)
        assert hear(made)["error"]["code"] in {"invalid_json", "message_too_large"}


@pytest.mark.parametrize(
    "event",
    [
        {"type": "apend", "port": "audio_in"},
        {"type": "append", "port": "audio_in"},
        {"type": "append", "port": "audio_in", "array": {"dtype": "object", "shape": [1], "data": "AA=="}},
        {"type": "open", "model": "actor"},
    ],
)
def test_a_bad_event_ends_its_request_with_one_error(socket, event):
    made, engine = socket
    engine.script = lambda task: [Sleep(30)]
    ask(made, type="open", model="actor")
    made.send(json.dumps(event))
    assert hear(made)["type"] == "error"
    wait_for(lambda: not engine.running)


def test_a_failure_is_one_event_and_a_client_that_leaves_cancels(socket):
    made, engine = socket
    engine.script = lambda task: [StepFailed("node raised")]
    ask(made, type="open", model="actor")
    assert hear(made)["error"]["code"] == "step_failed"
    engine.script = lambda task: [Out("note", "x"), Sleep(30)]
    ask(made, type="open", model="actor")
    assert hear(made)["type"] == "output"
    made.close()
    wait_for(lambda: len(engine.cancelled) == 1)
