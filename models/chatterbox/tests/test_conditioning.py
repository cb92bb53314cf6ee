"""Voices: by name, by the content of a clip, from files; and how loud a clip is."""

import threading
import time

import numpy as np
import pytest
import torch

from models.chatterbox.conditioning import VoiceCache, Voices, content_hash, from_mapping, read
from models.chatterbox.loudness import levelled, loudness
from models.chatterbox.media import groups
from models.chatterbox.tests import tiny
from serving.core.contract import Audio
from serving.errors import BadRequest, SetupError


def clip(seed=0, rate=16_000):
    return Audio(np.random.default_rng(seed).standard_normal((1, 100)).astype(np.float32), rate)


def test_a_hash_is_of_the_content_alone():
    assert content_hash(clip()) == content_hash(clip())
    assert len({content_hash(one) for one in (clip(), clip(1), clip(rate=8000))}) == 3


def test_two_who_want_a_voice_at_once_get_the_same_one():
    made = []

    def make(audio):
        time.sleep(0.05)
        made.append(audio)
        return tiny.voice()

    cache, found = VoiceCache(make), []
    threads = [threading.Thread(target=lambda: found.append(cache.get(clip()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert all(one is found[0] for one in found)


def test_the_voices_used_last_are_kept():
    cache = VoiceCache(lambda audio: tiny.voice(), most=2)
    first = cache.get(clip(0))
    cache.get(clip(1))
    assert cache.get(clip(0)) is first
    cache.get(clip(2))  # the second goes
    assert cache.get(clip(0)) is first
    cache.get(clip(1))
    assert cache.misses == 4


def test_a_voice_that_cannot_be_made_is_tried_again():
    answers = iter([ValueError("no"), tiny.voice()])

    def make(audio):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cache = VoiceCache(make)
    with pytest.raises(ValueError, match="no"):
        cache.get(clip())
    assert cache.get(clip()) is not None


def test_voices_of_a_folder_are_looked_up_and_never_opened_as_paths(tmp_path):
    voice = tiny.voice(3)
    gen = {name: getattr(voice.gen, name) for name in voice.gen.__slots__}
    held = {
        "t3": {"speaker_emb": voice.t3.speaker_emb, "cond_prompt_speech_tokens": voice.t3.cond_prompt_speech_tokens}
    }
    torch.save({**held, "gen": gen}, tmp_path / "anna.pt")
    torch.save({**held, "gen": gen}, tmp_path.parent / "secret.pt")
    voices = Voices.find(tmp_path, str(tmp_path))
    assert voices.names == ("anna",)
    assert torch.equal(voices.get("anna").gen.prompt_feat, voice.gen.prompt_feat)
    for name in ("../secret", "ann", str(tmp_path / "anna")):
        with pytest.raises(BadRequest, match="No voice"):
            voices.get(name)


def test_a_file_that_holds_no_voice_says_so(tmp_path):
    torch.save({"t3": {}}, tmp_path / "broken.pt")
    with pytest.raises(SetupError, match="broken"):
        read(tmp_path / "broken.pt")


def test_lengths_that_a_voice_lacks_are_its_own():
    voice = tiny.voice(1)
    gen = {
        "prompt_token": voice.gen.prompt_token,
        "prompt_feat": voice.gen.prompt_feat,
        "embedding": voice.gen.embedding,
    }
    t3 = {"speaker_emb": voice.t3.speaker_emb, "cond_prompt_speech_tokens": voice.t3.cond_prompt_speech_tokens[0]}
    found = from_mapping(t3, gen)
    assert (int(found.gen.prompt_token_len), int(found.gen.prompt_feat_len)) == (20, 40)
    assert found.t3.cond_prompt_speech_tokens.shape == (1, 20)


def test_a_sine_has_the_loudness_of_its_power():
    """BS.1770: a full-scale sine at 997 Hz in one channel is -3.01 LUFS."""
    t = np.arange(5 * 48_000) / 48_000
    sine = np.sin(2 * np.pi * 997 * t).astype(np.float32)
    assert loudness(sine, 48_000) == pytest.approx(-3.01, abs=0.1)
    assert loudness(levelled(sine, 48_000), 48_000) == pytest.approx(-27.0, abs=0.01)


def test_silence_stays_silence():
    silence = np.zeros(48_000, np.float32)
    assert loudness(silence, 24_000) == -np.inf
    np.testing.assert_array_equal(levelled(silence, 24_000), silence)


def test_groups_hold_whole_sentences_and_no_more_than_fits():
    text = "One short sentence. " * 50
    made = groups(text, len, 1000)
    assert all(len(group) <= 400 and group.endswith(".") for group in made)
    assert " ".join(made) == text.strip()
    assert all(len(group) <= 45 for group in groups(text[:200], len, 45))
