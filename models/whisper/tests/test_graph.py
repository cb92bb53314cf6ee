"""The port in the engine against openai-whisper's `decode` and `transcribe`, with random weights."""

import asyncio
from unittest import mock

import numpy as np
import pytest
import torch
import whisper
from whisper.decoding import DecodingOptions, decode

from models.whisper import media
from models.whisper.languages import LANGUAGES
from models.whisper.media import Sound
from models.whisper.request import TranscribeKnobs
from models.whisper.tests.running import clip, empty, engine_of, outputs, tokens, transcribed
from serving.core.contract import Audio, Task
from serving.errors import BadRequest

ONCE = {
    "fallback_temperatures": (),
    "compression_ratio_threshold": None,
    "logprob_threshold": None,
    "no_speech_threshold": None,
}


ONE_MODEL = pytest.mark.parametrize("tiny", [True], indirect=True, ids=["multilingual"])


def samples_of(audio):
    """All of it, as the reference's loader gives it: 16 kHz mono."""
    sound = Sound(audio, 80)
    return sound.samples(0, sound.count)


def theirs(tiny, audio, **knobs):
    options = {name: value for name, value in ONCE.items() if name != "fallback_temperatures"} | knobs
    return tiny.transcribe(samples_of(audio), temperature=0.0, fp16=False, **options)


@pytest.mark.parametrize("seconds", [0.001, 0.3, 3, 30, 61.237], ids=lambda s: f"{s}s")
@pytest.mark.parametrize("n_mels", [80, 128])
def test_features_are_the_references_read_block_by_block(seconds, n_mels):
    sound = Sound(clip(seconds, rate=16_000), n_mels)
    expected = whisper.log_mel_spectrogram(sound.samples(0, sound.count), n_mels, padding=480_000)
    assert expected.shape[1] == sound.content + 3000
    assert torch.equal(sound.mel(0, expected.shape[1]), expected)
    middle = slice(sound.content // 2, sound.content + 7)
    assert torch.equal(sound.mel(middle.start, middle.stop), expected[:, middle])


def test_a_long_recording_is_not_kept(monkeypatch):
    whole = Sound(clip(70, rate=22_050, channels=2), 80)
    monkeypatch.setattr(media, "KEPT", 1)
    read = Sound(whole.audio, 80)
    for start in (0, 2900, 4000, 0):
        assert torch.equal(read.mel(start, start + 3000), whole.mel(start, start + 3000))
    assert len(read._kept) == 1


@ONE_MODEL
def test_encoder(tiny, port):
    window = Sound(clip(3), 80).mel(0, 3000)[None]
    with torch.inference_mode():
        assert (port.modules["whisper"].encoder(window) - tiny.encoder(window)).abs().max() < 1e-5


@pytest.mark.parametrize("timed", [True, False], ids=["timed", "untimed"])
def test_greedy_tokens_and_figures(tiny, port, timed):
    audio = clip(5)
    mel = whisper.pad_or_trim(Sound(audio, 80).mel(0, 500), 3000)
    expected = decode(tiny, mel, DecodingOptions(language="en", without_timestamps=not timed, fp16=False))
    found = transcribed(port, [audio], language="en", without_timestamps=not timed, **ONCE)[0]
    first = found["segments"][0]
    assert tokens(found)[: len(expected.tokens)] == expected.tokens[: len(tokens(found))]
    assert first.avg_logprob == pytest.approx(expected.avg_logprob, abs=1e-4)
    assert first.no_speech_prob == pytest.approx(expected.no_speech_prob, rel=1e-3)
    assert first.compression_ratio == expected.compression_ratio


@ONE_MODEL
def test_a_prompt_changes_the_text_as_in_the_reference(tiny, port):
    audio = clip(2, seed=3)
    plain, prompted = (transcribed(port, [audio], language="en", prompt=p, **ONCE)[0] for p in (None, "Some words"))
    assert tokens(prompted) != tokens(plain)
    expected = theirs(tiny, audio, language="en", initial_prompt="Some words")
    assert tokens(prompted) == [token for segment in expected["segments"] for token in segment["tokens"]]


@ONE_MODEL
def test_language_is_detected_as_in_the_reference(tiny, port):
    audio = clip(4, seed=5)
    found = transcribed(port, [audio], without_timestamps=True, **ONCE)[0]
    assert found["info"]["language"] == LANGUAGES[theirs(tiny, audio, without_timestamps=True)["language"]]
    assert found["info"]["duration"] == pytest.approx(4)


@ONE_MODEL
def test_eight_at_once_are_what_they_are_alone(port):
    clips = [clip(1 + i % 3, seed=i) for i in range(8)]
    together = transcribed(port, clips, language="en", without_timestamps=True, **ONCE)
    for audio, found in zip(clips[::3], together[::3], strict=True):
        alone = transcribed(port, [audio], language="en", without_timestamps=True, **ONCE)[0]
        assert tokens(alone) == tokens(found)


@ONE_MODEL
def test_more_requests_than_rows_wait(port):
    found = transcribed(port, [clip(1, seed=i) for i in range(11)], language="en", without_timestamps=True, **ONCE)
    assert all(one["segments"] for one in found)


@ONE_MODEL
def test_a_seed_fixes_the_draws(port):
    warm = ONCE | {"temperature": 0.8, "language": "en", "without_timestamps": True}
    first, again = (tokens(transcribed(port, [clip(1)], **warm)[0]) for _ in range(2))
    assert first == again
    assert first != tokens(transcribed(port, [clip(1)], **warm | {"temperature": 0.0})[0])


@ONE_MODEL
def test_a_client_that_leaves_frees_everything(port):
    async def run():
        engine = engine_of(port)
        await engine.start()
        try:
            task = Task("transcribe", {"audio": clip(20)}, TranscribeKnobs(language="en"))
            handle = await engine.submit("whisper", task, request_id="leaver")
            async for _ in handle:
                break
            handle.cancel()
            await empty(engine)
            assert (await outputs(engine, clip(1), "next", {"language": "en", **ONCE}))["segments"]
            await empty(engine)
        finally:
            await engine.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("samples", "reason"),
    [(np.zeros((1, 0)), "empty"), (np.array([[0.0, np.nan]]), "not finite"), (np.full((2, 9), np.inf), "not finite")],
)
def test_sound_that_is_none_is_refused(port, samples, reason):
    audio = Audio(samples.astype(np.float32), 16_000)
    with pytest.raises(BadRequest, match=reason) as caught:
        port.prepare(Task("transcribe", {"audio": audio}, TranscribeKnobs()))
    assert caught.value.param == "file"


@ONE_MODEL
def test_one_sample_and_other_rates(port):
    assert transcribed(port, [Audio(np.zeros((1, 1), np.float32), 16_000)], language="en", **ONCE)[0]["segments"] == []
    stereo = samples_of(clip(1, rate=8000, channels=2))
    assert stereo.shape == (16_000,)
    assert np.array_equal(stereo, np.round(stereo * 32768) / 32768)


def test_knobs_that_the_checkpoint_cannot_serve(port):
    def prepare(**knobs):
        port.prepare(Task("transcribe", {"audio": clip(1)}, TranscribeKnobs(**knobs)))

    if not port.tokenizer.multilingual:
        with pytest.raises(BadRequest, match="English only"):
            prepare(task="translate")
        with pytest.raises(BadRequest, match='no language "de"'):
            prepare(language="German")
    with pytest.raises(BadRequest, match="special token"):
        prepare(prompt="<|endoftext|>")
    with pytest.raises(BadRequest, match="prefix has"):
        prepare(prefix="word " * 230)
    with pytest.raises(BadRequest, match="Token ids end"):
        prepare(suppress_tokens=(10**6,))


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"language": "klingon"}, "no language of Whisper"),
        ({"temperature": 1.5}, "less than or equal to 1"),
        ({"clip_timestamps": (3, 1)}, "must ascend"),
        ({"hallucination_silence_threshold": 1.0}, "needs word_timestamps"),
        ({"beam_size": 5}, "Extra inputs"),
    ],
)
def test_bounds_of_knobs(knobs, reason):
    with pytest.raises(ValueError, match=reason):
        TranscribeKnobs(**knobs)


@ONE_MODEL
def test_clips_past_the_end_of_the_sound_stop(port):
    found = transcribed(port, [clip(1)], language="en", clip_timestamps=(0.0, 90.0, 95.0), **ONCE)[0]
    assert all(segment.start < 30 for segment in found["segments"])


@ONE_MODEL
def test_word_times_in_the_engine(tiny, port):
    audio = clip(3, seed=1)
    found = transcribed(port, [audio], language="en", word_timestamps=True, without_timestamps=True, **ONCE)[0]
    expected = theirs(tiny, audio, language="en", word_timestamps=True, without_timestamps=True)["segments"]
    assert tokens(found) == [token for segment in expected for token in segment["tokens"]]
    ours = [word for segment in found["segments"] for word in segment.words]
    reference = [word for segment in expected for word in segment["words"]]
    assert [word.word for word in ours] == [word["word"] for word in reference]
    assert [word.start for word in ours] == pytest.approx([word["start"] for word in reference], abs=0.021)
    assert [word.probability for word in ours] == pytest.approx([w["probability"] for w in reference], abs=1e-4)


@ONE_MODEL
def test_swapped_alignment_heads_are_seen(port):
    knobs = {"language": "en", "word_timestamps": True, "without_timestamps": True, **ONCE}
    aligner, audio = port.graph.nodes["aligner"], clip(3, seed=1)

    def starts():
        found = transcribed(port, [audio], **knobs)[0]
        return [word.start for segment in found["segments"] for word in segment.words]

    right = starts()
    with mock.patch.object(aligner, "heads", {0: [1, 0]}):
        assert starts() != right
    assert starts() == right
