"""Planted faults: each of them must make the scripted comparison with the reference fail."""

from dataclasses import replace
from unittest import mock

import pytest
import torch

from models.whisper import segments, transcribe
from models.whisper.request import TranscribeKnobs
from models.whisper.tests.test_transcribe import FRAMES, Script, ours, replaced, segment, theirs


@pytest.fixture(scope="module")
def attempts(port):
    """Two segments and an open one; a rejected window that is accepted warm; speech after it; closed to the end."""
    stamp = port.tokenizer.timestamps
    open_ended = [stamp, 1849, 257, stamp + 300, stamp + 300, 290, stamp + 700, stamp + 700, 318]
    repeats = [stamp, *[220, 257] * 40, stamp + 500]
    return [
        (open_ended, -0.2, 0.1),
        (repeats, -0.3, 0.1),
        ([stamp + 10, 340, 1849, stamp + 400], -0.3, 0.1),
        ([stamp, 1849, stamp + 200, stamp + 200, 12, stamp + 900], -0.4, 0.1),
    ]


KNOBS = TranscribeKnobs(language="en", fallback_temperatures=(0.6,), prompt="some words", word_timestamps=True)


def compared(port, attempts, knobs=KNOBS):
    mel = torch.randn(80, 7000 + FRAMES, generator=torch.Generator().manual_seed(3))
    first, second = Script(port, attempts), Script(port, attempts)
    with replaced(mel):
        expected = [segment(found) for found in theirs(port, first, mel, knobs)]
        got = [segment(found) for found in ours(port, second, mel, knobs)]
    return (second.asked, got) == (first.asked, expected)


def wrong_seek(window, tokens, tokenizer):
    found = segments.cut(window, tokens, tokenizer)
    return replace(found, seek=found.seek + 2)


def stamps_off_by_one(window, tokens, tokenizer):
    return segments.cut(window, [t + (t >= tokenizer.timestamps) for t in tokens], tokenizer)


def leaking_prompt(job, story):
    return story.tokens


FAULTS = {
    "wrong seek": ("cut", wrong_seek),
    "off-by-one timestamp token": ("cut", stamps_off_by_one),
    "prompt leaks over a rejected window": ("_context", leaking_prompt),
    "a gate that never rejects": ("rejected", lambda decoded, knobs: False),
    "words not placed": ("place", lambda *_: None),
}


def test_without_a_fault_the_sides_agree(port, attempts):
    assert compared(port, attempts)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_seen(port, attempts, fault):
    name, broken = FAULTS[fault]
    knobs = KNOBS.model_copy(update={"word_timestamps": fault == "words not placed"})
    with mock.patch.object(transcribe, name, broken):
        assert not compared(port, attempts, knobs)
    assert compared(port, attempts, knobs)
