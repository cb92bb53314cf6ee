"""Schemathesis over the OpenAPI page: whatever is sent, no 5xx, and nothing is left behind."""

from __future__ import annotations

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

from serving.api.app import route_table
from serving.api.tests.fake import FakeEngine, Out, answer, live, make_app
from serving.core.contract import Delta

FRAMES = np.zeros((2, 16, 16, 3), np.uint8)
SCRIPTS = {
    "transcribe": answer,
    "speak": lambda task: [Out("audio", np.full(2400, 0.1, np.float32))],
    "chat": lambda task: [Out("text", Delta(text="Good day."))],
    "image": lambda task: [Out("image", FRAMES[0])],
    "video": lambda task: [Out("video", FRAMES)],
    "generate": lambda task: [Out("action", FRAMES[0, 0])],
}
KEYS = ("ears", "mouth", "talker", "painter", "filmer", "actor", "plain", "reader")
NIGHTLY = -(-10_000 // sum(spec.method != "WS" for spec in route_table()))  # 10,000 cases over all routes


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    engine = FakeEngine(lambda task: SCRIPTS[task.kind](task))
    app, _ = make_app(engine, keys=KEYS, media={"voices": tmp_path_factory.mktemp("voices")})
    with live(app) as url:
        yield schemathesis.openapi.from_url(url + "/openapi.json")
    assert not engine.running
    assert app.state.api.seats.taken == 0


@st.composite
def drawable(draw, cases):
    """Cases, but for those that Schemathesis itself cannot make: its filter does not know the bytes of a file."""
    try:
        return draw(cases)
    except ValueError as error:
        if "Unsupported type: 'Binary'" not in str(error):
            raise
        reject()


@pytest.mark.parametrize("spec", route_table(), ids=lambda spec: f"{spec.method} {spec.path}")
@pytest.mark.parametrize("examples", [30, pytest.param(NIGHTLY, marks=pytest.mark.nightly)])
def test_no_request_breaks_the_server(page, spec, examples):
    """Requests that the page allows and, where there is a body, requests that it does not."""
    if spec.method == "WS":
        assert spec.path not in page.raw_schema["paths"]
        return
    operation = page[spec.path][spec.method]

    allowed = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    forbidden = drawable(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))

    @given(case=allowed | forbidden if spec.encodings else allowed)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    def asked(case):
        response = case.call()
        assert response.status_code < 500, (response.status_code, response.text, case.as_curl_command())

    asked()
