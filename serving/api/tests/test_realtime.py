"""`/v1/realtime`: transcription sessions."""

from __future__ import annotations

import base64
import json

import numpy as np
import openai
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from serving.api.tests.fake import SEGMENTS, TEXT, FakeEngine, Out, Sleep, answer, live, make_app, wait_for
from serving.errors import StepFailed

SOUND = base64.b64encode((np.arange(4800) % 100).astype("<i2").tobytes()).decode()
PREFIX = "conversation.item.input_audio_transcription."


@pytest.fixture
def session():
    app, engine = make_app(FakeEngine(answer), limits={"audio_seconds": 1.0})
    with live(app) as url, connect(url.replace("http", "ws") + "/v1/realtime?model=ears") as made:
        assert hear(made)["type"] == "session.created"
        yield made, engine
        made.close()
        wait_for(lambda: not engine.running)
    assert app.state.api.seats.taken == 0


def ask(socket, kind, **fields):
    socket.send(json.dumps({"type": kind, **fields}))


def hear(socket):
    return json.loads(socket.recv(timeout=5))


def transcript(socket):
    """Events up to the end of one item."""
    events = [hear(socket)]
    while not events[-1]["type"].endswith(("completed", "failed")):
        events.append(hear(socket))
    return events


def test_what_is_committed_is_transcribed_with_deltas(session):
    made, engine = session
    ask(made, "input_audio_buffer.append", audio=SOUND)
    ask(made, "input_audio_buffer.append", audio=SOUND)
    ask(made, "input_audio_buffer.commit")
    committed, *deltas, done = transcript(made)
    assert committed["type"] == "input_audio_buffer.committed"
    assert {event["item_id"] for event in deltas} == {committed["item_id"], done["item_id"]}
    assert "".join(event["delta"] for event in deltas) == done["transcript"] == TEXT
    assert done["usage"] == {"type": "duration", "seconds": 0.4}
    audio = engine.submitted[0].task.inputs["audio"]
    assert (audio.rate, audio.samples.shape) == (24_000, (1, 9600))
    assert audio.samples[0, 5] == np.float32(5 / 32768)


def test_settings_reach_the_model(session):
    made, engine = session
    config = {"format": {"type": "audio/pcm", "rate": 16_000}, "transcription": {"language": "de", "prompt": "Names"}}
    ask(made, "session.update", session={"type": "transcription", "audio": {"input": config}})
    assert hear(made)["session"]["audio"]["input"]["transcription"]["language"] == "de"
    ask(made, "input_audio_buffer.append", audio=SOUND)
    ask(made, "input_audio_buffer.commit")
    transcript(made)
    task = engine.submitted[0].task
    assert (task.knobs.language, task.knobs.prompt, task.inputs["audio"].rate) == ("de", "Names", 16_000)


def test_items_answer_in_the_order_of_their_commits(session):
    made, engine = session
    scripts = iter([[Sleep(0.2), Out("segments", [SEGMENTS[0]])], [Out("segments", [SEGMENTS[1]])]])
    engine.script = lambda task: next(scripts)
    for _ in range(2):
        ask(made, "input_audio_buffer.append", audio=SOUND)
        ask(made, "input_audio_buffer.commit")
    events = transcript(made) + transcript(made)
    commits = [event for event in events if event["type"] == "input_audio_buffer.committed"]
    ends = [event for event in events if event["type"] == PREFIX + "completed"]
    assert [event["item_id"] for event in ends] == [event["item_id"] for event in commits]
    assert commits[1]["previous_item_id"] == commits[0]["item_id"]
    assert [event["transcript"] for event in ends] == ["Hello there.", "How are you?"]


def test_clear_forgets_and_an_empty_commit_is_refused(session):
    made, engine = session
    ask(made, "input_audio_buffer.append", audio=SOUND)
    ask(made, "input_audio_buffer.clear")
    assert hear(made)["type"] == "input_audio_buffer.cleared"
    ask(made, "input_audio_buffer.commit", event_id="mine")
    error = hear(made)["error"]
    assert (error["code"], error["event_id"]) == ("input_audio_buffer_commit_empty", "mine")
    assert not engine.submitted


def test_a_failed_item_ends_once_and_the_session_goes_on(session):
    made, engine = session
    engine.script = lambda task: [Out("segments", [SEGMENTS[0]]), StepFailed("node raised")]
    ask(made, "input_audio_buffer.append", audio=SOUND)
    ask(made, "input_audio_buffer.commit")
    end = transcript(made)[-1]
    assert (end["type"], end["error"]["code"]) == (PREFIX + "failed", "step_failed")
    engine.script = answer
    ask(made, "input_audio_buffer.append", audio=SOUND)
    ask(made, "input_audio_buffer.commit")
    assert transcript(made)[-1]["transcript"] == TEXT


def test_cancel_ends_what_runs_exactly_once(session):
    made, engine = session
    engine.script = lambda task: [Sleep(30)]
    ask(made, "input_audio_buffer.append", audio=SOUND)
    ask(made, "input_audio_buffer.commit")
    hear(made)
    wait_for(lambda: bool(engine.running))
    ask(made, "response.cancel")
    end = hear(made)
    assert (end["type"], end["error"]["code"]) == (PREFIX + "failed", "cancelled")
    wait_for(lambda: not engine.running)
    with pytest.raises(TimeoutError):
        made.recv(timeout=0.2)


@pytest.mark.parametrize(
    ("kind", "fields", "says"),
    [
        ("input_audio_buffer.apend", {}, 'Did you mean "input_audio_buffer.append"'),
        ("input_audio_buffer.append", {"audio": "@@"}, "base64"),
        ("input_audio_buffer.append", {}, "audio"),
        ("input_audio_buffer.append", {"audio": base64.b64encode(bytes(60_000)).decode()}, "holds 1 seconds"),
        ("session.update", {"session": {"type": "realtime"}}, "transcription"),
        ("session.update", {"session": {"audio": {"input": {"format": {"type": "audio/pcmu"}}}}}, "audio/pcm"),
        ("session.update", {"session": {"audio": {"input": {"transcription": {"model": "eers"}}}}}, "ears"),
        (
            "session.update",
            {"session": {"audio": {"input": {"turn_detection": {"type": "server_vad"}}}}},
            "turn_detection",
        ),
    ],
)
def test_a_bad_event_is_told_and_the_session_goes_on(session, kind, fields, says):
    made, _ = session
    ask(made, kind, **fields)
    error = hear(made)
    assert error["type"] == "error"
    assert says in error["error"]["message"]
    ask(made, "input_audio_buffer.append", audio=SOUND)
    ask(made, "input_audio_buffer.commit")
    assert transcript(made)[-1]["transcript"] == TEXT


def test_closing_the_socket_cancels(session):
    made, engine = session
    engine.script = lambda task: [Sleep(30)]
    ask(made, "input_audio_buffer.append", audio=SOUND)
    ask(made, "input_audio_buffer.commit")
    hear(made)
    wait_for(lambda: bool(engine.running))
    made.close()
    wait_for(lambda: len(engine.cancelled) == 1)


def test_a_session_needs_a_key_and_a_model_that_can():
    app, _ = make_app(api_keys=("right",))
    with live(app) as url:
        address = url.replace("http", "ws") + "/v1/realtime?model="
        with pytest.raises(InvalidStatus, match="403"):
            connect(address + "ears")
        with connect(address + "ears", additional_headers={"authorization": "Bearer right"}) as made:
            assert hear(made)["type"] == "session.created"
        browser = ["realtime", "openai-insecure-api-key.right"]
        with connect(address + "ears", subprotocols=browser) as made:
            assert (made.subprotocol, hear(made)["type"]) == ("realtime", "session.created")
        with connect(address + "deaf", additional_headers={"authorization": "Bearer right"}) as made:
            assert "ears, plain" in hear(made)["error"]["message"]
            with pytest.raises(ConnectionClosed):
                made.recv(timeout=5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_openai_client_holds_a_session():
    app, _ = make_app()
    sdk = openai.OpenAI(base_url="http://unset/v1", api_key="any")
    with live(app) as url, sdk.with_options(base_url=url + "/v1").realtime.connect(model="ears") as connection:
        connection.input_audio_buffer.append(audio=SOUND)
        connection.input_audio_buffer.commit()
        last = next(event for event in connection if event.type == PREFIX + "completed")
        assert last.transcript == TEXT
