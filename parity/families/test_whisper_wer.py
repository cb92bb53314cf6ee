"""Word error rates of real tiny.en on the packaged speech: by length, by concurrency, by noise, by windowing.

Every figure is held to the ledger under the case of the real weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from models.whisper.tests.running import tokens, transcribed
from oracles import speech
from parity.families.whisper_openai import RATE, reference_of, spoken
from parity.harness.text import ErrorRate, whisper_normaliser, word_error_rate
from serving.core.contract import Audio

KEY = "whisper_tiny_en"
GREEDY = {"fallback_temperatures": ()}
pytestmark = pytest.mark.parametrize("key", [KEY])


@pytest.fixture
def ours(port, key):
    return port(key, rows=8).model


@pytest.fixture
def hold(oracle, check, key):
    """`hold(name, texts, found)`: the corpus' word error rate, within the ledger's bound and its own interval."""
    case = oracle("whisper", "tiny_en_real", key=key, rung="real")

    def measure(name: str, texts: Sequence[str], found: Sequence[dict]) -> ErrorRate:
        said = ["".join(segment.text for segment in one["segments"]) for one in found]
        rate = word_error_rate(texts, said, whisper_normaliser())
        check.value(case, f"wer/{name}", rate.rate, "wer")
        return rate

    return measure


def recordings(each: int) -> tuple[list[np.ndarray], list[str]]:
    """The clips, `each` of them to a recording with half a second between them, and what is said in each."""
    gap, sounds, said = np.zeros(RATE // 2, np.float32), spoken(12), [clip.text for clip in speech.clips()]
    starts = range(0, 12, each)
    joined = [np.concatenate([part for sound in sounds[i : i + each] for part in (sound, gap)]) for i in starts]
    return joined, [" ".join(said[i : i + each]) for i in starts]


def noisy(samples: np.ndarray, decibels: float, seed: int) -> np.ndarray:
    """The samples with white noise at a signal-to-noise ratio."""
    noise = np.random.default_rng(seed).standard_normal(len(samples)).astype(np.float32)
    return samples + noise * np.sqrt(np.mean(samples**2) / 10 ** (decibels / 10))


def clips(sounds: Sequence[np.ndarray]) -> list[Audio]:
    return [Audio(sound[None], RATE) for sound in sounds]


def test_one_sentence_eight_at_once(key, ours, hold):
    sounds, said = recordings(1)
    rate = hold("4s", said, transcribed(ours, clips(sounds), **GREEDY))
    low, high = rate.interval()
    assert 0 <= low <= rate.rate <= high <= 0.1
    assert rate.outliers() == []


@pytest.mark.nightly
def test_one_at_a_time_is_what_eight_at_once_are(key, ours, hold):
    sounds, said = recordings(1)
    hold("4s", said, [transcribed(ours, clips([sound]), **GREEDY)[0] for sound in sounds])


@pytest.mark.nightly
@pytest.mark.parametrize("decibels", [20, 10])
def test_noise(key, ours, hold, decibels):
    sounds, said = recordings(1)
    heard = [noisy(sound, decibels, seed) for seed, sound in enumerate(sounds)]
    hold(f"{decibels}dB", said, transcribed(ours, clips(heard), **GREEDY))


@pytest.mark.nightly
def test_longer_recordings(key, ours, hold):
    sounds, said = recordings(3)
    hold("14s", said, transcribed(ours, clips(sounds), **GREEDY))


@pytest.mark.parametrize("windowing", [pytest.param("sequential", marks=pytest.mark.nightly), "parallel"])
def test_windowing_of_a_minute(key, ours, hold, windowing):
    sounds, said = recordings(12)
    found = transcribed(ours, clips(sounds), windowing=windowing, **GREEDY)
    hold(windowing, said, found)
    starts = [segment.start for segment in found[0]["segments"]]
    assert starts == sorted(starts)
    assert found[0]["segments"][-1].end == pytest.approx(len(sounds[0]) / RATE, abs=1.5)


@pytest.mark.nightly
def test_ten_minutes_are_the_references(key, ours):
    samples = np.tile(recordings(12)[0][0], 11)[: 600 * RATE]
    found = transcribed(ours, clips([samples]), **GREEDY)[0]
    expected = reference_of(ours).transcribe(samples, temperature=0.0, fp16=False)["segments"]
    assert tokens(found) == [token for segment in expected for token in segment["tokens"]]
    times = [(segment.start, segment.end, segment.text) for segment in found["segments"]]
    assert times == [(segment["start"], segment["end"], segment["text"]) for segment in expected]
