"""What a served Kokoro answers to text and fields that are not as they should be: a 400 that helps, or speech."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

KEY = "kokoro"
pytestmark = pytest.mark.parametrize("key", [KEY])
AUDIBLE = 0.01  # root mean square of speech is well above, of silence well below


@pytest.fixture
def url(served, key):
    return served(key)


def say(url: str, key: str, **fields: object) -> httpx.Response:
    body = {"model": key, "input": "Good morning.", "voice": "af_heart", "response_format": "pcm", **fields}
    return httpx.post(f"{url}/v1/audio/speech", json=body, timeout=120)


def held(url: str) -> dict[str, object]:
    info = httpx.get(url + "/v1/server_info").json()
    engine = {name: info["engine"][name] for name in ("requests", "waiting", "free_slots")}
    return {"in_server": info["in_server"], **engine}


REFUSED = {
    "no text": ({"input": ""}, "input", ""),
    "spaces": ({"input": " \n\t "}, "input", ""),
    "emoji": ({"input": "😀🎉👍🏽"}, "input", ""),
    "symbols": ({"input": "∆∑ ⌘ ♜ ::: ~~"}, "input", ""),
    "punctuation": ({"input": "?! ... —"}, "input", ""),
    "too long": ({"input": "a" * 100_001}, "input", "100"),
    "unknown voice": ({"voice": "af_hart"}, "voice", "af_heart"),
    "a path": ({"voice": "../af_heart"}, "voice", "af_heart"),
    "a path in a blend": ({"voice": "af_heart+../../etc/passwd"}, "voice", "af_heart"),
    "a blend with a missing voice": ({"voice": "af_heart+af_nobody(2)"}, "voice", "af_nobody"),
    "a blend of nothing": ({"voice": "af_heart(0)"}, "voice", "above 0"),
    "half a blend": ({"voice": "af_heart+"}, "voice", "af_heart"),
    "no voice": ({"voice": ""}, "voice", ""),
    "a voice of a language that is not here": ({"voice": "ef_dora"}, "voice", "espeak"),
    "speed 0": ({"speed": 0}, "speed", "0.25"),
    "too fast": ({"speed": 4.01}, "speed", "4"),
    "speed in words": ({"speed": "fast"}, "speed", "number"),
    "format": ({"response_format": "mpeg3"}, "response_format", "mp3"),
    "language": ({"lang_code": "q"}, "lang_code", "a, b"),
    "phonemes": ({"phonemes": "###"}, "phonemes", "#"),
    "no phonemes": ({"phonemes": ""}, "phonemes", ""),
    "an unknown field": ({"sped": 2}, "sped", "speed"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_the_callers_mistake(key, url, name):
    fields, param, says = REFUSED[name]
    response = say(url, key, **fields)
    assert response.status_code == 400, response.text[:300]
    error = response.json()["error"]
    assert error["param"] == param
    assert says in error["message"]


SPOKEN = {
    "a number": "1998",
    "a price": "$12.50",
    "words between emoji": "😀 hello 🎉",
    "a word in no dictionary": "Zyxtron",
    "one letter": "A",
    "capitals": "NASA",
    "no space after the stop": "Yes.No.",
    "markup": "[Kokoro](/kˈOkəɹO/)",
    "a broken markup": "[Kokoro](/kˈOk",
    "accents": "Café Zoë",
    "a byte order mark": "﻿Hello",
    "an address": "https://example.com/a?b=c",
}


@pytest.mark.parametrize("name", SPOKEN)
def test_what_a_person_could_read_is_heard(key, url, name):
    response = say(url, key, input=SPOKEN[name], speed=2)
    assert response.status_code == 200, response.text[:300]
    samples = np.frombuffer(response.content, "<i2") / 32768
    assert np.sqrt(np.square(samples).mean()) > AUDIBLE


def test_a_book_begins_soon_and_ends_when_the_caller_leaves(key, url):
    """100,000 characters: the most that is taken."""
    before = held(url)
    body = {"model": key, "input": ("It rained. " * 10_000)[:100_000], "voice": "af_heart", "response_format": "pcm"}
    with httpx.stream("POST", f"{url}/v1/audio/speech", json={**body, "stream": True}, timeout=120) as heard:
        assert heard.status_code == 200
        assert len(next(heard.iter_bytes(4096))) > 0
    for _ in range(200):
        if held(url) == before:
            return
    assert held(url) == before
