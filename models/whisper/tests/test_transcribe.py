"""Windowing, gates, prompts and word placement against openai-whisper's `transcribe`, both fed the same script.

Neither side has a network: a script says what the n-th attempt decodes to, so that every path through the
algorithm is reached. What is compared is all that can be seen: windows asked for, prompts, temperatures, segments.
"""

import sys
import zlib
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
import whisper.timing
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from whisper.decoding import DecodingResult

from models.whisper import transcribe
from models.whisper.request import TranscribeKnobs
from models.whisper.tests import reference
from models.whisper.timing import Timing
from models.whisper.transcribe import Job, read, rules_of
from serving.core.contract import Emit, Packed

FRAMES = 3000
CLIPS = [(0.0,), (1.5, 7.0), (2.0, 4.0, 4.5), (0.0, 0.0, 5.0, 7.31)]
REFERENCE = sys.modules["whisper.transcribe"]  # the package hides its module behind the function of that name


class Heard:
    """A recording whose features are known."""

    def __init__(self, mel):
        self.features, self.content = mel, mel.shape[1] - FRAMES

    def mel(self, start, stop):
        return self.features[:, start:stop]


class Script:
    """Deterministic answers: the n-th attempt's tokens and figures, and timings of any text."""

    def __init__(self, port, attempts):
        self.tokenizer, self.asked = port.tokenizer, []
        # What ends every script: a window with nothing after its last time token, which always moves on.
        self.attempts = [*attempts, ([1849, port.tokenizer.timestamps + 100], -0.2, 0.1)]

    def answer(self, mel, prompt, temperature):
        """Items as the decoder emits them."""
        n = len(self.asked)
        self.asked.append((zlib.crc32(np.ascontiguousarray(mel).tobytes()), tuple(prompt), temperature))
        tokens, logprob, no_speech = self.attempts[min(n, len(self.attempts) - 1)]
        ids = np.array([*tokens, self.tokenizer.eot])
        spread = {"logprob": np.full(len(ids), logprob, np.float32), "no_speech": np.full(len(ids), no_speech)}
        return Packed.one({"id": ids, **spread})


def timings(text):
    """Words of one or two tokens; lengths and gaps vary with the tokens, so that long and unlikely ones occur."""
    words, now = [], 0.0
    for i in range(0, len(text), 2):
        group = list(text[i : i + 2])
        seed = sum(group) % 97
        now += (seed % 7) * 0.2
        length = (0.0, 0.08, 0.3, 0.5, 2.8)[seed % 5]
        word = (" a", " word", ".", ",", ' "', " long")[seed % 6]
        words.append((word, group, round(now, 2), round(now + length, 2), (seed % 10) / 10))
        now += length
    return words


def ours(port, script, mel, knobs):
    tokenizer = port.tokenizer
    initial = tokenizer.encode(f" {knobs.prompt.strip()}") if knobs.prompt else []
    job = Job(port.config, tokenizer, knobs, Heard(mel), initial, [], rules_of(tokenizer, port.config, knobs))
    steps, value, segments = transcribe.transcribe(job), None, []
    while True:
        try:
            item = steps.send(value)
        except StopIteration:
            return segments
        value = None
        if isinstance(item, Emit):
            segments += item.items.values if item.port == "segments" else []
        elif item.walk == "window":
            prompt = item.inputs["decoder.prompt"].values.tolist()
            value = script.answer(item.inputs["encoder.window"].values["mel"][0], prompt, item.knobs.temperature)
        else:
            n = len(item.inputs["aligner.text"].values)
            value = Packed.one({"scores": np.zeros((n, 1, 4), np.float32), "next": np.zeros(n, np.float32)})


class Model:
    """What `whisper.transcribe` needs of a model."""

    def __init__(self, port, script):
        self.script, self.device = script, torch.device("cpu")
        self.dims = reference.dimensions(port.config.multilingual)
        self.is_multilingual, self.num_languages = port.config.multilingual, port.config.languages

    def decode(self, segment, options):
        tokenizer = self.script.tokenizer
        start = [*tokenizer.start(options.language, options.task)]
        prompt = [tokenizer.sot_prev, *options.prompt[-47:], *start] if options.prompt else start
        prompt += [tokenizer.no_timestamps] if options.without_timestamps else []
        found = read(self.script.answer(segment.numpy(), prompt, options.temperature), options.temperature, tokenizer)
        return DecodingResult(
            audio_features=None,
            language=options.language,
            tokens=found.tokens,
            text=found.text,
            avg_logprob=found.avg_logprob,
            no_speech_prob=found.no_speech_prob,
            temperature=options.temperature,
            compression_ratio=found.compression_ratio,
        )


def theirs(port, script, mel, knobs):
    return REFERENCE.transcribe(
        Model(port, script),
        np.zeros(1, np.float32),
        temperature=knobs.temperatures,
        compression_ratio_threshold=knobs.compression_ratio_threshold,
        logprob_threshold=knobs.logprob_threshold,
        no_speech_threshold=knobs.no_speech_threshold,
        condition_on_previous_text=knobs.condition_on_previous_text,
        initial_prompt=knobs.prompt,
        carry_initial_prompt=knobs.carry_initial_prompt,
        word_timestamps=knobs.word_timestamps,
        clip_timestamps=list(knobs.clip_timestamps),
        hallucination_silence_threshold=knobs.hallucination_silence_threshold,
        language=knobs.language,
        task=knobs.task,
        without_timestamps=knobs.without_timestamps,
        fp16=False,
    )["segments"]


def segment(found):
    """A segment of either side in one form."""
    if isinstance(found, dict):
        found = SimpleNamespace(**{"words": None} | found)
    words = None
    if found.words:
        as_tuple = [
            tuple(w.values()) if isinstance(w, dict) else (w.word, w.start, w.end, w.probability) for w in found.words
        ]
        words = [tuple(map(str, word)) for word in as_tuple]
    return (
        float(found.start),
        float(found.end),
        found.text,
        list(found.tokens),
        found.temperature,
        found.avg_logprob,
        found.no_speech_prob,
        found.compression_ratio,
        words,
    )


@contextmanager
def replaced(mel):
    """Both sides get the same features, and the same timings for the same text."""

    def find_alignment(model, tokenizer, text_tokens, mel, num_frames, **_):
        return [whisper.timing.WordTiming(*word) for word in timings(text_tokens)]

    def align(scores, chances, text, *_):
        return [Timing(*word) for word in timings(text)]

    with (
        mock.patch.object(REFERENCE, "log_mel_spectrogram", return_value=mel),
        mock.patch.object(whisper.timing, "find_alignment", find_alignment),
        mock.patch.object(transcribe, "align", align),
    ):
        yield


@st.composite
def decoded(draw, stamps):
    """Tokens of a window: segments between time tokens, the last one perhaps open, perhaps none."""
    words = st.lists(st.sampled_from([220, 257, 290, 318, 340, 12, 13, 1849, 30]), min_size=0, max_size=5)
    times = sorted(draw(st.lists(st.integers(0, 1500), min_size=0, max_size=7)))
    tokens = []
    for i, time in enumerate(times):
        tokens.append(stamps + time)
        if i % 2 == 0:
            tokens += draw(words)
        elif draw(st.booleans()) and i + 1 < len(times):
            tokens.append(stamps + time)
    if not times or draw(st.booleans()):
        tokens += draw(words)
    repeat = draw(st.sampled_from([1, 1, 1, 12]))
    logprob = draw(st.sampled_from([-0.2, -0.9, -1.5]))
    return tokens * repeat, logprob, draw(st.sampled_from([0.1, 0.5, 0.7, 0.9]))


@st.composite
def all_knobs(draw, content):
    words = draw(st.booleans())
    return TranscribeKnobs(
        language="en",
        prompt=draw(st.sampled_from([None, "some words before", "word " * 250])),
        temperature=draw(st.sampled_from([0.0, 0.0, 0.4])),
        fallback_temperatures=draw(st.sampled_from([(), (0.2, 0.6), (0.2, 0.4, 0.6, 0.8, 1.0)])),
        compression_ratio_threshold=draw(st.sampled_from([None, 2.4])),
        logprob_threshold=draw(st.sampled_from([None, -1.0])),
        no_speech_threshold=draw(st.sampled_from([None, 0.6])),
        condition_on_previous_text=draw(st.booleans()),
        carry_initial_prompt=draw(st.booleans()),
        without_timestamps=draw(st.booleans()),
        word_timestamps=words,
        hallucination_silence_threshold=draw(st.sampled_from([None, 0.5, 2.0])) if words else None,
        clip_timestamps=draw(st.sampled_from(CLIPS if content > 730 else CLIPS[:1])),
    )


@settings(deadline=None, max_examples=40, phases=(Phase.generate,))
@given(data=st.data(), content=st.sampled_from([0, 1, 731, 3000, 4217]))
def test_the_algorithm_is_the_references(port, data, content):
    knobs = data.draw(all_knobs(content))
    attempts = data.draw(st.lists(decoded(port.tokenizer.timestamps), min_size=1, max_size=6))
    mel = torch.randn(80, content + FRAMES, generator=torch.Generator().manual_seed(content))
    first, second = Script(port, attempts), Script(port, attempts)
    with replaced(mel):
        expected = [segment(found) for found in theirs(port, first, mel, knobs)]
        got = [segment(found) for found in ours(port, second, mel, knobs)]
    assert second.asked == first.asked
    assert got == expected
