"""The contract of every route that runs a model, generated from the route table and the fields' own bounds.

A route without an example here fails. After every case nothing may be left behind: no running request, no seat.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import types
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
import httpx
import numpy as np
import pytest
from PIL import Image

from serving.api.app import route_table
from serving.api.fields import Own, owner
from serving.api.media.encode import encode
from serving.api.tests.fake import CARDS, FakeEngine, Out, Sleep, answer, client, live, make_app, wait_for
from serving.core.contract import Delta
from serving.errors import EngineDead, Overloaded, StepFailed

SPECS = {spec.path: spec for spec in route_table() if spec.kind and spec.method == "POST"}
CASES = [(path, encoding) for path, spec in SPECS.items() for encoding in spec.encodings]
EVERY = pytest.mark.parametrize(("path", "encoding"), CASES, ids=[f"{path}-{kind}" for path, kind in CASES])

SOUND = np.linspace(-0.5, 0.5, 2400, dtype=np.float32)
FRAMES = np.zeros((2, 16, 16, 3), np.uint8)
WAV = encode("wav", 24_000, SOUND)
BUFFER = io.BytesIO()
Image.fromarray(FRAMES[0]).save(BUFFER, "PNG")
PNG = BUFFER.getvalue()
PNG_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()
SCRIPTS = {
    "transcribe": answer,
    "speak": lambda task: [Out("audio", SOUND)],
    "chat": lambda task: [Out("text", Delta(text="Good ")), Out("text", Delta(text="day."))],
    "image": lambda task: [Out("image", FRAMES[0])],
    "video": lambda task: [Out("video", FRAMES)],
    "generate": lambda task: [Out("action", FRAMES[0, 0])],
}
MODELS = {"transcribe": "ears", "speak": "mouth", "chat": "talker", "image": "painter", "video": "filmer"}
MODELS["generate"] = "actor"
MINIMAL: dict[str, dict[str, Any]] = {
    "/v1/audio/transcriptions": {},
    "/v1/audio/translations": {},
    "/v1/audio/speech": {"input": "Hello."},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}]},
    "/v1/images/generations": {"prompt": "a cat"},
    "/v1/images/edits": {"prompt": "a dog"},
    "/v1/videos/generations": {"prompt": "rain", "output_format": "gif"},
    "/generate": {},
}
FULL: dict[str, dict[str, Any]] = {
    "/v1/audio/transcriptions": {
        "language": "en", "prompt": "Names", "response_format": "verbose_json", "temperature": 0.2, "seed": 1,
        "timestamp_granularities": ["word", "segment"], "stream": False, "chunking_strategy": "auto", "beam_size": 2,
    },
    "/v1/audio/translations": {"prompt": "Names", "response_format": "srt", "temperature": 0.2, "beam_size": 2},
    "/v1/audio/speech": {
        "voice": "high", "response_format": "flac", "speed": 1.5, "stream_format": "audio", "stream": True, "seed": 2,
    },
    "/v1/chat/completions": {
        "temperature": 0.5, "top_p": 0.9, "max_completion_tokens": 9, "n": 2, "stop": ["a", "b"], "seed": 3,
        "modalities": ["text"], "stream": False, "user": "me", "metadata": {"a": "b"}, "stream_options": {},
    },
    "/v1/images/generations": {
        "n": 2, "size": "32x16", "output_format": "webp", "output_compression": 50, "quality": "high", "seed": 4,
        "response_format": "b64_json", "steps": 3, "moderation": "low", "user": "me", "background": "auto",
    },
    "/v1/images/edits": {"n": 2, "size": "16x16", "steps": 3, "input_fidelity": "high", "output_format": "jpeg"},
    "/v1/videos/generations": {"n": 1, "size": "32x16", "num_frames": 9, "fps": 4.0, "seed": 5},
    "/generate": {"text": "go", "gain": 2.0, "session": "s-1", "stream": True, "seed": 6},
}  # fmt: skip
FILES = {"file": ("a.wav", WAV), "audio": ("a.wav", WAV), "image": ("a.png", PNG), "mask": ("m.png", PNG)}
STREAMS = {"/v1/audio/transcriptions", "/v1/chat/completions", "/generate"}  # `stream` with errors told in-band


def app_of(**settings: Any):
    engine = FakeEngine(lambda task: SCRIPTS[task.kind](task))
    return make_app(engine, keys=(*MODELS.values(), "deaf"), **settings)


def fields_of(path, **fields):
    return {"model": MODELS[SPECS[path].kind], **MINIMAL[path], **fields}


def as_request(path, encoding, fields, files=None):
    """httpx arguments; `files` replaces the required ones."""
    if encoding == "json":
        return {"json": fields}
    given = files if files is not None else {name: FILES[name] for name, need in SPECS[path].files.items() if need}
    form: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, list) and not any(isinstance(item, dict) for item in value):
            form[f"{name}[]"] = [str(item) for item in value]
        else:
            form[name] = value if isinstance(value, str) else json.dumps(value)
    # Without a file httpx would send a plain form; a field of no name that the route knows is the test's own.
    return {"data": form, "files": given} if given else {"files": {name: (None, form[name]) for name in form or ()}}


async def ask(path, encoding, fields, files=None, app_and_engine=None, **settings):
    app, engine = app_and_engine or app_of(**settings)
    async with client(app) as http:
        response = await http.post(path, **as_request(path, encoding, fields, files))
    assert not engine.running
    assert app.state.api.seats.taken == 0
    return response, engine


def refused(response, status=400):
    """The error of a refusal: its envelope, whole."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["code"]
    return error


def test_every_route_has_an_example():
    assert set(SPECS) == set(MINIMAL) == set(FULL)
    assert {spec.kind for spec in SPECS.values()} <= set(MODELS)
    assert {name for spec in SPECS.values() for name in spec.files} <= set(FILES)


@EVERY
async def test_minimal(path, encoding):
    response, engine = await ask(path, encoding, fields_of(path))
    assert response.status_code == 200, response.text
    assert len(engine.submitted) == 1
    assert "x-ignored-parameters" not in response.headers


@EVERY
async def test_full(path, encoding):
    response, engine = await ask(path, encoding, fields_of(path, **FULL[path]))
    assert response.status_code == 200, response.text
    if "seed" in FULL[path]:
        assert response.headers["x-seed"] == str(FULL[path]["seed"]) == str(engine.submitted[0].seed)


@EVERY
async def test_null_is_not_given(path, encoding):
    optional = [name for name, info in SPECS[path].schema.model_fields.items() if not info.is_required()]
    if encoding == "json":
        response, _ = await ask(path, encoding, {**dict.fromkeys(optional), **fields_of(path)})
        assert response.status_code == 200, response.text


@EVERY
async def test_missing(path, encoding):
    fields = fields_of(path)
    required = [name for name, info in SPECS[path].schema.model_fields.items() if info.is_required()]
    assert "model" in required
    for name in required:
        response, engine = await ask(path, encoding, {k: v for k, v in fields.items() if k != name} | {"seed": 1})
        error = refused(response)
        assert (error["param"], error["code"]) == (name, "missing_required_parameter")
        assert not engine.submitted
    for name, need in SPECS[path].files.items():
        if need and encoding == "form":
            response, _ = await ask(path, encoding, fields, {"nothing": ("a", b"a")})
            assert refused(response)["param"] in {name, "nothing"}
            response, _ = await ask(path, encoding, fields, {})
            assert refused(response)["param"] == name


def kinds(annotation):
    """Python types a field admits."""
    if get_origin(annotation) in {Union, types.UnionType}:
        return {kind for part in get_args(annotation) for kind in kinds(part)}
    if get_origin(annotation) is Literal:
        return {str}
    if hasattr(annotation, "__metadata__"):
        return kinds(annotation.__origin__)
    return {get_origin(annotation) or annotation}


@EVERY
async def test_wrong_type(path, encoding):
    """A value of a type that the field does not have; text stands for most of them in a form."""
    for name, info in SPECS[path].schema.model_fields.items():
        if owner(info) is Own.REFUSED or name == "model":
            continue
        admitted = kinds(info.annotation)
        wrong = "x y" if not admitted & {str, tuple, dict} else 7
        if encoding == "form" and wrong == 7:
            continue  # "7" is text
        response, engine = await ask(path, encoding, fields_of(path, **{name: wrong}))
        error = refused(response)
        assert error["param"].split(".")[0] == name
        assert not engine.submitted


@EVERY
async def test_out_of_bounds(path, encoding):
    """Just outside each bound of a number, on both sides; the message names the nearest valid value."""
    tried = 0
    for name, info in SPECS[path].schema.model_fields.items():
        for mark in info.metadata:
            if isinstance(mark, annotated_types.Ge):
                value, nearest = mark.ge - 1, mark.ge
            elif isinstance(mark, annotated_types.Le):
                value, nearest = mark.le + 1, mark.le
            else:
                continue
            tried += 1
            response, engine = await ask(path, encoding, fields_of(path, **{name: value}))
            error = refused(response)
            assert error["param"] == name
            assert f"nearest valid value is {nearest}" in error["message"]
            assert not engine.submitted
    assert tried


@EVERY
async def test_unknown_field(path, encoding):
    response, engine = await ask(path, encoding, fields_of(path, sed=3))
    error = refused(response)
    assert (error["param"], error["code"]) == ("sed", "unknown_parameter")
    assert 'Did you mean "seed"' in error["message"]
    assert not engine.submitted


EXAMPLES = {str: "text", int: 1, float: 1.0, bool: True, dict: {"a": "b"}, tuple: ["a"]}


@EVERY
async def test_fields_without_effect_are_named_and_unsupported_ones_refused(path, encoding):
    for name, info in SPECS[path].schema.model_fields.items():
        if owner(info) not in {Own.IGNORED, Own.REFUSED}:
            continue
        default = info.get_default(call_default_factory=True)
        value = next(EXAMPLES[kind] for kind in EXAMPLES if kind in kinds(info.annotation))
        if isinstance(default, bool):
            value = not default
        if owner(info) is Own.IGNORED:
            response, _ = await ask(path, encoding, fields_of(path, **{name: value}))
            assert response.status_code == 200, (name, response.text)
            assert response.headers["x-ignored-parameters"] == name
        else:
            response, engine = await ask(path, encoding, fields_of(path, **{name: value}))
            error = refused(response)
            assert (error["param"].split(".")[0], error["code"]) == (name, "unsupported_parameter"), error
            assert not engine.submitted


@EVERY
@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("nobody", 404, "model_not_found"),
        ("deaf", 400, "unsupported_model"),
        ("", 400, "missing_required_parameter"),
        (" ", 400, "missing_required_parameter"),
    ],
)
async def test_models_that_cannot(path, encoding, model, status, code):
    response, engine = await ask(path, encoding, fields_of(path, model=model))
    error = refused(response, status)
    assert (error["code"], error["param"]) == (code, "model")
    assert not engine.submitted


@EVERY
async def test_a_route_that_nothing_serves(path, encoding):
    app, engine = make_app(FakeEngine(), keys=("deaf",))
    response, _ = await ask(path, encoding, fields_of(path), app_and_engine=(app, engine))
    error = refused(response, 404)
    able = [key for key, card in CARDS.items() if SPECS[path].kind in card.tasks]
    assert any(key in error["message"] for key in able)


@EVERY
async def test_empty_oversized_and_malformed_bodies(path, encoding):
    app, engine = app_of(limits={"upload_bytes": 2000, "json_bytes": 2000})
    types = {"json": "application/json", "form": "multipart/form-data; boundary=b"}
    async with client(app) as http:
        headers = {"content-type": types[encoding]}
        empty = await http.post(path, content=b"", headers=headers)
        broken = await http.post(path, content=b'{"model": ' if encoding == "json" else b"--c\r\nx", headers=headers)
        large = await http.post(path, content=b" " * 2001, headers=headers)
        other = await http.post(path, content=b"model=x", headers={"content-type": "application/x-www-form-urlencoded"})
    refused(empty)
    refused(broken)
    assert refused(large, 413)["code"] == "body_too_large"
    assert refused(other, 415)["code"] == "unsupported_content_type"
    assert not engine.submitted
    assert app.state.api.seats.taken == 0


@EVERY
async def test_bad_media(path, encoding):
    if encoding == "json":
        media = [
            name
            for name in ("audio", "image")
            if kinds(SPECS[path].schema.model_fields.get(name, _None).annotation) & {str}
        ]
        cases = [
            {name: value} for name in media for value in ("http://127.0.0.1/x", "data:a/b;base64,@", "/etc/passwd")
        ]
        for case in cases:
            response, engine = await ask(path, encoding, fields_of(path, **case))
            assert refused(response)["param"] == next(iter(case))
            assert not engine.submitted
        return
    for name in SPECS[path].files:
        required = {key: FILES[key] for key, need in SPECS[path].files.items() if need}
        for data in (b"", b"neither sound nor picture", FILES[name][1][:30]):
            response, engine = await ask(path, encoding, fields_of(path), {**required, name: ("x", data)})
            if data or response.status_code != 200:
                assert refused(response)["param"] == name
                assert not engine.submitted
        twice = [(name, FILES[name]), (name, FILES[name])]
        if name != "image":
            extra = [(key, value) for key, value in required.items() if key != name]
            response, _ = await ask(path, encoding, fields_of(path), [*extra, *twice])
            assert refused(response)["param"] == name
    text = dict.fromkeys(SPECS[path].files, (None, "text"))
    response, _ = await ask(path, encoding, fields_of(path), text)
    assert refused(response)["param"] in SPECS[path].files


class _None:
    annotation = None


@EVERY
async def test_overload(path, encoding):
    app, engine = app_of(queue_size=0)
    engine.script = lambda task: [Sleep(0.2), *SCRIPTS[task.kind](task)]
    async with client(app) as http:
        capacity = app.state.api.seats.capacity
        asked = [http.post(path, **as_request(path, encoding, fields_of(path))) for _ in range(capacity + 3)]
        responses = await asyncio.gather(*asked)
    statuses = [response.status_code for response in responses]
    assert (statuses.count(200), statuses.count(503)) == (capacity, 3)
    error = refused(next(response for response in responses if response.status_code == 503), 503)
    assert error["code"] == "queue_full"
    assert app.state.api.seats.taken == 0


@EVERY
@pytest.mark.parametrize("error", [Overloaded("full"), EngineDead("gone"), StepFailed("node"), ValueError("inside")])
async def test_the_engine_fails_before_the_first_output(path, encoding, error):
    app, engine = app_of()
    engine.script = lambda task: [error]
    response, _ = await ask(path, encoding, fields_of(path), app_and_engine=(app, engine))
    status = 503 if isinstance(error, Overloaded) else 500
    shown = refused(response, status)
    assert "inside" not in shown["message"]
    assert ("retry-after" in response.headers) == (status == 503)


@pytest.mark.parametrize("path", sorted(STREAMS))
async def test_the_engine_fails_in_the_middle_of_a_stream(path):
    app, engine = app_of()
    engine.script = lambda task: [SCRIPTS[task.kind](task)[0], StepFailed("node raised")]
    encoding = SPECS[path].encodings[0]
    response, _ = await ask(path, encoding, fields_of(path, stream=True), app_and_engine=(app, engine))
    assert response.status_code == 200
    last = response.text.strip().splitlines()[-1].removeprefix("data: ")
    assert json.loads(last)["error"]["code"] == "step_failed"
    assert "[DONE]" not in response.text


@EVERY
def test_disconnects_in_each_phase_leave_nothing(path, encoding):
    """While the model is silent, and (for streams) between two outputs; and a finished request is never aborted."""
    app, engine = app_of()
    with live(app) as url:
        engine.script = lambda task: [Sleep(30), *SCRIPTS[task.kind](task)]
        leave(url + path, as_request(path, encoding, fields_of(path)))
        wait_for(lambda: engine.submitted and not engine.running)
        if path in STREAMS or path == "/v1/audio/speech":
            engine.script = lambda task: [*SCRIPTS[task.kind](task), Sleep(30)]
            leave(url + path, as_request(path, encoding, fields_of(path, stream=True)))
            wait_for(lambda: len(engine.submitted) == 2 and not engine.running)
        wait_for(lambda: app.state.api.seats.taken == 0)
        aborted = list(engine.cancelled)
        assert len(aborted) == len(engine.submitted)
        engine.script = lambda task: SCRIPTS[task.kind](task)
        assert httpx.post(url + path, **as_request(path, encoding, fields_of(path))).status_code == 200
        assert engine.cancelled == aborted


def leave(url, arguments):
    """Ask, and go before the answer is whole."""
    asking = httpx.stream("POST", url, timeout=0.3, **arguments)
    with pytest.raises(httpx.ReadTimeout), asking as response:
        response.read()
