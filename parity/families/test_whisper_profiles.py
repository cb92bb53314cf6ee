"""What the quicker profiles cost in quality: word errors beside those of `exact`, on the voice that the project
packages, on voices that nothing was chosen by, and in noise; and the guard, on windows that are cut too short.
"""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from models import registry
from models.whisper import transcribe
from models.whisper.head import QuickHead
from models.whisper.media import Sound
from models.whisper.profiles import Profile
from models.whisper.quick import QuickEncoder
from models.whisper.tests.running import transcribed
from parity.families.test_whisper_wer import GREEDY, clips, noisy, recordings
from parity.families.whisper_naive import naive_decoder
from parity.families.whisper_openai import RATE, spoken
from parity.harness.text import ErrorRate, whisper_normaliser, word_error_rate
from serving.core.contract import Audio, Options, Task
from serving.core.engine import Engine

KEY = "whisper_tiny_en"
VOICES = ("af_bella", "af_nicole", "am_adam", "am_michael", "bf_emma", "bm_george")
SENTENCES = (
    "A cold wind came down from the hills and drove the last of the visitors back to their hotels.",
    "Please send the signed copies to the office before Friday.",
    "He had never seen so many people waiting for a single train.",
    "Turn left.",
    "The committee agreed that the old bridge should be repaired rather than replaced, although several members asked"
    " for a second opinion on the cost of the work.",
    "No, I do not think that it will rain again tomorrow.",
)
pytestmark = pytest.mark.parametrize("key", [KEY])


@pytest.fixture
def case(oracle, key):
    return oracle("whisper", "tiny_en_real", key=key, rung="real")


def rate(texts: list[str], found: list[dict]) -> ErrorRate:
    said = ["".join(segment.text for segment in one["segments"]) for one in found]
    return word_error_rate(texts, said, whisper_normaliser())


def full_windows(found: list[dict]) -> int:
    return sum(one["info"].get("full_windows", 0) for one in found)


def test_distance_of_features_and_logits(key, case, check, port):
    """Of the quick parts from the plain ones, on speech that is followed by silence."""
    model = port(key, rows=8).model
    net, stamps = model.modules["whisper"], model.tokenizer.timestamps
    sound = Sound(Audio(spoken(1)[0][None], RATE), 80)
    mel = F.pad(sound.mel(0, sound.content), (0, 3000 - sound.content))
    with torch.inference_mode():
        plain, quick = net.encoder(mel[None])[0], QuickEncoder(net.encoder)(mel, sound.content)
        hidden, weight = naive_decoder(net.decoder, case["ids"][0], plain[None]), net.decoder.head.weight
        logits, found = F.linear(hidden, weight), QuickHead(weight, stamps)(hidden)
    check.value(case, "quick/features", float((quick - plain).abs().max()), "max_abs")
    check.value(case, "quick/logits", float((found - logits).abs().max()), "max_abs")
    check.value(case, "quick/logsumexp", float((found.logsumexp(-1) - logits.logsumexp(-1)).abs().max()), "max_abs")
    best = logits[:, :stamps].topk(8).indices
    assert (found.gather(1, best) - logits.gather(1, best)).abs().max() <= 1e-4
    assert (found - logits)[:, stamps:].abs().max() <= 1e-4
    assert torch.equal(found.argmax(-1), logits.argmax(-1))


@pytest.mark.parametrize("profile", [pytest.param("default", marks=pytest.mark.nightly), "fast"])
def test_words_of_the_packaged_speech(key, case, check, port, profile):
    sounds, said = recordings(1)
    found = transcribed(port(key, rows=8, profile=profile).model, clips(sounds), **GREEDY)
    errors = rate(said, found)
    check.value(case, f"wer/{profile}", errors.rate, "wer")
    assert errors.outliers() == []
    assert profile == "fast" or full_windows(found) == 0


def test_the_guard_hears_what_loops_in_full(key, port, monkeypatch):
    """No silence behind the sound is too little: what was said last is said again and again."""
    model = port(key, rows=8, profile="fast").model
    sounds, said = recordings(1)
    few, texts = clips(sounds[:4]), said[:4]
    monkeypatch.setattr(model, "profile", Profile(quick=True, margin=0))
    knobs = {**GREEDY, "without_timestamps": True, "compression_ratio_threshold": None, "logprob_threshold": None}
    guarded = transcribed(model, few, **knobs)
    monkeypatch.setattr(transcribe, "suspicious", lambda *_: False)
    bare = transcribed(model, few, **knobs)
    assert rate(texts, bare).rate >= 0.2
    assert rate(texts, guarded).rate <= 0.05
    assert full_windows(guarded) >= 1
    assert full_windows(bare) == 0


async def _speak() -> list[tuple[str, np.ndarray]]:
    """Each voice says four of the sentences, at 24 kHz."""
    engine = Engine([registry.load("kokoro", Options(rows=8))])
    await engine.start()
    made = []
    try:
        for i, voice in enumerate(VOICES):
            for j in range(4):
                text = SENTENCES[(i + j) % len(SENTENCES)]
                task = Task("speak", {"text": text}, registry.card("kokoro").tasks["speak"](voice=voice))
                handle = await engine.submit("kokoro", task, request_id=f"s{i}{j}", seed=1)
                parts = [output.value async for output in handle if output.port == "audio"]
                made.append((text, np.concatenate(parts)))
    finally:
        await engine.stop()
    return made


@pytest.fixture(scope="module")
def held_out():
    return asyncio.run(_speak())


@pytest.mark.nightly
@pytest.mark.parametrize("decibels", [None, 10, 0], ids=["clean", "10dB", "0dB"])
def test_voices_that_nothing_was_chosen_by(key, port, held_out, decibels):
    texts = [text for text, _ in held_out]
    sounds = [s if decibels is None else noisy(s, decibels, i) for i, (_, s) in enumerate(held_out)]
    heard = [Audio(sound[None].astype(np.float32), 24_000) for sound in sounds]
    rates = {}
    for profile in ("exact", "default", "fast"):
        found = transcribed(port(key, rows=8, profile=profile).model, heard, **GREEDY)
        rates[profile] = rate(texts, found)
        print(f"{profile}: {rates[profile].rate:.4f} {rates[profile].interval()}, {full_windows(found)} in full")
    low, high = rates["exact"].interval()
    for profile in ("default", "fast"):
        assert low <= rates[profile].rate <= max(high, rates["exact"].rate + 0.01)
