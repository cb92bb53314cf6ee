"""The page at `/`, in a headless Chromium against the fake engine."""

from __future__ import annotations

import re

import httpx
import numpy as np
import pytest

from serving.api.tests import browser
from serving.api.tests.fake import TEXT, FakeEngine, Out, Sleep, answer, client, live, make_app, wait_for
from serving.core.contract import Delta, ToolCall

SOUND = np.zeros(2400, np.float32) + 0.1
SCRIPTS = {
    "transcribe": answer,
    "speak": lambda task: [Out("audio", SOUND)],
    "chat": lambda task: [Out("text", Delta(text="Good ")), Out("text", Delta(text="day."))],
    "image": lambda task: [Out("image", np.full((16, 16, 3), 200, np.uint8))],
}
KEYS = ("ears", "mouth", "talker", "painter")
needs_chromium = pytest.mark.skipif(browser.BINARY is None, reason="not run: there is no Chromium on this machine")


def app_of(**settings):
    return make_app(FakeEngine(lambda task: SCRIPTS[task.kind](task)), keys=KEYS, **settings)


async def test_the_page_is_one_file_with_no_outside_resource():
    app, _ = app_of(api_keys=("key",))
    async with client(app) as http:
        response = await http.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)|url\(|@import|https?://", response.text)
    labelled = set(re.findall(r'<label for="(\w+)"', response.text))
    assert set(re.findall(r'<(?:input|select|textarea) id="(\w+)"', response.text)) == labelled


@pytest.fixture(scope="module")
def tab():
    app, engine = app_of()
    with live(app) as url, browser.browser(url) as made:
        made.wait("document.getElementById('state').textContent === 'Ready.'")
        yield made, engine
        assert made.faults() == []


def choose(tab, model, task, **fields):
    """Pick a model and a task by keyboard's own events, fill fields, press Go, and wait for the end."""
    tab.run(f"""(() => {{
        const set = (id, value) => {{
            const e = document.getElementById(id);
            e.value = value;
            e.dispatchEvent(new Event('change'));
        }};
        set('model', '{model}'); set('task', '{task}');
        for (const [id, value] of Object.entries({fields or {}})) document.getElementById(id).value = value;
    }})()""")


def go(tab):
    tab.run("document.getElementById('go').click()")
    tab.wait("!document.getElementById('go').disabled")


@needs_chromium
def test_type_and_hear(tab):
    page, engine = tab
    choose(page, "mouth", "/v1/audio/speech", text="Hello.")
    assert page.run("[...document.getElementById('voice').options].map(o => o.value)") == ["default", "low", "high"]
    page.run("document.getElementById('voice').value = 'high'")
    go(page)
    page.wait("document.querySelector('#media audio') && document.querySelector('#media audio').duration > 0")
    assert abs(page.run("document.querySelector('#media audio').duration") - 0.1) < 0.01
    assert engine.submitted[-1].task.knobs.voice == "high"
    assert page.run("document.getElementById('timing').textContent").startswith("Done.")


@needs_chromium
def test_record_and_read(tab):
    page, engine = tab
    choose(page, "ears", "/v1/audio/transcriptions")
    assert page.run("document.getElementById('text-part').hidden")
    page.run("document.getElementById('record').click()")
    page.wait("document.getElementById('record').getAttribute('aria-pressed') === 'true'")
    page.run("new Promise(done => setTimeout(done, 600))")
    page.run("document.getElementById('record').click()")
    page.wait(f"document.getElementById('out').textContent === '{TEXT}'")
    assert engine.submitted[-1].task.inputs["audio"].seconds > 0.2


@needs_chromium
def test_chat_and_paint(tab):
    page, engine = tab
    choose(page, "talker", "/v1/chat/completions", text="Hello")
    go(page)
    assert page.run("document.getElementById('out').textContent") == "Good day."
    choose(page, "painter", "/v1/images/generations", text="a cat", extra='{"seed": 5}')
    go(page)
    page.wait("document.querySelector('#media img').naturalWidth === 16")
    assert page.run("document.querySelector('#media img').alt") == "a cat"
    assert engine.submitted[-1].seed == 5


@needs_chromium
def test_a_conversation_goes_on_until_a_new_one_is_begun(tab):
    page, engine = tab
    call = ToolCall("call_1", "add", '{"a": 1}')
    engine.script, before = lambda task: [Out("text", Delta("I think.", "Yes.", (call,)))], engine.script
    try:
        choose(page, "talker", "/v1/chat/completions", text="First", extra="")
        go(page)
        assert page.run("document.getElementById('thought').textContent") == "I think."
        assert page.run("document.getElementById('out').innerText") == 'Yes.\nadd({"a": 1})'
        page.run("document.getElementById('text').value = 'Second'")
        go(page)
        sent = [(one["role"], one["content"]) for one in engine.submitted[-1].task.inputs["messages"]]
        assert sent == [("user", "First"), ("assistant", "Yes."), ("user", "Second")]
        assert page.run("document.getElementById('past').innerText") == "You\nFirst\nModel\nYes."
        page.run("document.getElementById('fresh').click()")
        go(page)
        assert len(engine.submitted[-1].task.inputs["messages"]) == 1
        assert page.run("document.getElementById('past').children.length") == 0
    finally:
        engine.script = before


@needs_chromium
def test_a_refusal_is_shown_in_the_servers_words(tab):
    page, _ = tab
    choose(page, "mouth", "/v1/audio/speech", text=" ", extra="")
    go(page)
    assert "not only spaces" in page.run("document.getElementById('out').textContent")
    page.messages.clear()  # the browser logs every 4xx


@needs_chromium
def test_stop_cancels(tab):
    page, engine = tab
    engine.script, before = lambda task: [Sleep(30)], engine.script
    try:
        choose(page, "talker", "/v1/chat/completions", text="Hello", extra="")
        page.run("document.getElementById('go').click()")
        wait_for(lambda: bool(engine.running))
        page.run("document.getElementById('stop').click()")
        wait_for(lambda: not engine.running)
        page.wait("document.getElementById('timing').textContent.startsWith('Stopped.')")
    finally:
        engine.script = before


@needs_chromium
def test_a_key_is_asked_for(tmp_path):
    app, _ = app_of(api_keys=("key",))
    with live(app) as url, browser.browser(url) as page:
        page.wait("document.getElementById('state').textContent.includes('API key')")
        page.run("document.getElementById('key').value = 'key'")
        page.run("document.getElementById('key').dispatchEvent(new Event('change'))")
        page.wait("document.getElementById('state').textContent === 'Ready.'")
        assert httpx.get(url + "/v1/models").status_code == 401
        page.picture(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 5000
