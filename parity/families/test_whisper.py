"""Real tiny.en against openai-whisper with the same weights: features, logits, tokens, times, decisions, words.

The reference is in the test environment, so it runs here, live. Both sides compute in float32 on the CPU.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
import whisper
import whisper.decoding
from whisper.decoding import DecodingOptions

from models.whisper.media import Sound
from models.whisper.tests.running import clip, tokens, transcribed
from oracles import speech
from parity.families.whisper_naive import naive_decoder
from parity.families.whisper_openai import RATE, reference_of, spoken
from serving.core.contract import Audio
from serving.resources import draws, sampling

KEY = "whisper_tiny_en"
SEED = 7  # what `transcribed` submits with
pytestmark = pytest.mark.parametrize("key", [KEY])


@pytest.fixture
def ours(port, key):
    return port(key, rows=8).model


@pytest.fixture
def theirs(ours):
    """openai-whisper's own model with the port's weights, which its strict loading checks."""
    return reference_of(ours)


def window(samples: np.ndarray, ours) -> torch.Tensor:
    """[1, n_mels, 3000] as the first window of a transcript: silence is padding, not sound."""
    sound = Sound(Audio(samples[None], RATE), ours.config.n_mels)
    return whisper.pad_or_trim(sound.mel(0, sound.content), 3000)[None]


def teacher_forced(net, mel: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Logits [T, V]."""
    return net.decoder.head(naive_decoder(net.decoder, ids, net.encoder(mel)))


def test_features_encoder_and_logits(key, ours, theirs):
    samples = spoken(1)[0]
    expected = whisper.log_mel_spectrogram(samples, ours.config.n_mels, padding=480_000)
    assert torch.equal(Sound(Audio(samples[None], RATE), ours.config.n_mels).mel(0, expected.shape[1]), expected)
    mel, net = window(samples, ours), ours.modules["whisper"]
    ids = torch.tensor([*ours.tokenizer.start("en", "transcribe"), *ours.tokenizer.encode(" Good morning, all.")])
    with torch.inference_mode():
        assert (net.encoder(mel) - theirs.encoder(mel)).abs().max() <= 1e-5
        assert (teacher_forced(net, mel, ids) - theirs(mel, ids[None])[0]).abs().max() <= 1e-4


@pytest.mark.parametrize("timed", [True, False], ids=["timed", "untimed"])
def test_greedy_tokens_alone_and_eight_at_once(key, ours, theirs, timed):
    sounds = spoken(8 if timed else 3)
    options = DecodingOptions(language="en", without_timestamps=not timed, fp16=False)
    expected = theirs.decode(torch.cat([window(sound, ours) for sound in sounds]), options)
    clips = [Audio(sound[None], RATE) for sound in sounds]
    knobs = {"without_timestamps": not timed, "fallback_temperatures": ()}
    together = transcribed(ours, clips, **knobs)
    for found, reference in zip(together, expected, strict=True):
        assert tokens(found) == reference.tokens
        first = found["segments"][0]
        assert first.avg_logprob == pytest.approx(reference.avg_logprob, abs=1e-4)
        assert first.no_speech_prob == pytest.approx(reference.no_speech_prob, abs=1e-4)
    assert tokens(transcribed(ours, clips[:1], **knobs)[0]) == expected[0].tokens


def programme() -> np.ndarray:
    """Speech with pauses, silence, a tone in noise, and the same sentence twice."""
    gap, sounds = np.zeros(RATE // 2, np.float32), spoken(4)
    talk = [part for sound in sounds for part in (sound, gap)]
    return np.concatenate([*talk, np.zeros(12 * RATE, np.float32), clip(5).samples[0], *[sounds[3]] * 2])


@pytest.mark.parametrize(
    "silence",
    [pytest.param(None, marks=pytest.mark.nightly, id="words"), pytest.param(2.0, id="words-and-silence")],
)
def test_long_audio_with_words(key, ours, theirs, silence):
    samples = programme()
    found = transcribed(
        ours,
        [Audio(samples[None], RATE)],
        word_timestamps=True,
        fallback_temperatures=(),
        hallucination_silence_threshold=silence,
    )[0]["segments"]
    expected = theirs.transcribe(
        samples, temperature=0.0, fp16=False, word_timestamps=True, hallucination_silence_threshold=silence
    )["segments"]
    assert [list(s.tokens) for s in found] == [s["tokens"] for s in expected]
    assert [(s.start, s.end, s.text) for s in found] == [(s["start"], s["end"], s["text"]) for s in expected]
    words = [(w.word, w.start, w.end) for s in found for w in s.words]
    assert words == [(w["word"], w["start"], w["end"]) for s in expected for w in s["words"]]
    assert len(words) > 40


class Draws:
    """Makes the reference draw the port's numbers: attempt by attempt, at the place of the token in its sequence."""

    def __init__(self) -> None:
        self.attempt, self.position = 0, 0

    def decode(self, function):
        def counted(*args, **kwargs):
            self.attempt += 1
            return function(*args, **kwargs)

        return counted

    def update(self, function):
        def placed(decoder, tokens, logits, sums):
            self.position = tokens.shape[1]
            return function(decoder, tokens, logits, sums)

        return placed

    def categorical(self, logits):
        u = draws.uniform(draws.keys(SEED + self.attempt, 1), np.array([self.position]))
        return mock.Mock(sample=lambda: sampling.draw(logits, torch.from_numpy(u)))


def test_fallback_decisions_with_the_same_draws(key, ours, theirs):
    """Thresholds that reject everything but the warmest attempts."""
    samples, gates = spoken(1)[0], {"logprob_threshold": -0.12, "compression_ratio_threshold": 1.2}
    found = transcribed(ours, [Audio(samples[None], RATE)], **gates)[0]["segments"]
    same = Draws()
    decoder = whisper.decoding.GreedyDecoder
    with (
        mock.patch.object(whisper.decoding, "Categorical", same.categorical),
        mock.patch.object(decoder, "update", same.update(decoder.update)),
        mock.patch.object(theirs, "decode", same.decode(theirs.decode)),
    ):
        expected = theirs.transcribe(samples, fp16=False, **gates)["segments"]
    assert same.attempt >= 4
    assert [s.temperature for s in found] == [s["temperature"] for s in expected]
    assert [list(s.tokens) for s in found] == [s["tokens"] for s in expected]


def test_silence_is_no_text(key, ours):
    assert transcribed(ours, [Audio(np.zeros((1, 10 * RATE), np.float32), RATE)])[0]["segments"] == []


@pytest.mark.parametrize("copies", [4, pytest.param(20, marks=pytest.mark.nightly)])
def test_words_of_a_repeated_clip_do_not_drift(key, ours, copies):
    """A sentence again and again with gaps: a word of each copy is found where it is.

    Not the first word: the pause before it counts as part of it, here as in the reference.
    """
    sentence = spoken(4)[3]
    period = len(sentence) + RATE
    samples = np.tile(np.concatenate([sentence, np.zeros(RATE, np.float32)]), copies)
    found = transcribed(ours, [Audio(samples[None], RATE)], word_timestamps=True)[0]["segments"]
    word = speech.clips()[3].text.split()[2]
    starts = [w.start for s in found for w in s.words if w.word.strip() == word]
    assert len(starts) == copies
    drift = np.array(starts) - starts[0] - np.arange(copies) * period / RATE
    assert np.abs(drift).max() <= 0.3
