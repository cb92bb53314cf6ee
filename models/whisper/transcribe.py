"""From windows to a transcript: where to look next, at what temperature, after which words.

The reference's sequential algorithm, as a generator: a window's time tokens say where the next one starts, accepted
text is the prompt of the next, and attempts that a gate rejects are made again at a higher temperature.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from models.whisper.config import FRAMES, FRAMES_PER_SECOND, WhisperConfig
from models.whisper.nodes import Attempt, Heard
from models.whisper.parallel import quiet_spans, together
from models.whisper.profiles import PROFILES, Profile
from models.whisper.request import APPEND, PREPEND, TranscribeKnobs
from models.whisper.rules import Rules, banned, only
from models.whisper.segments import FRAMES_PER_STEP, Cut, Decoded, Window, cut, finished, last_word_end, place
from models.whisper.silence import Silence
from models.whisper.timing import align
from models.whisper.tokenizer import Tokenizer
from serving.core.contract import Emit, Need, Packed, Piece, Segment, Steps

LOOP = 4  # tokens: shorter repeats are what people say
LATE = 50  # mel frames after the sound at which speech may end

Part = Generator[Piece | Emit, Packed | None, "Decoded"]


class Recording(Protocol):
    """A recording: `content` mel frames of sound, and 30 s of silence after them."""

    content: int

    def mel(self, start: int, stop: int) -> Tensor:
        """Log-mel [n_mels, stop - start]."""


@dataclass(slots=True)
class Job:
    """A prepared request."""

    config: WhisperConfig
    tokenizer: Tokenizer
    knobs: TranscribeKnobs
    sound: Recording
    initial: list[int]  # the user's prompt
    prefix: list[int]
    rules: Rules
    language: str = "en"
    attempts: int = 0
    lanes: int = 1  # stretches of the sound that are transcribed at once
    profile: Profile = PROFILES["exact"]
    full_windows: int = 0  # how often a trimmed window was not trusted and was heard in full

    @property
    def content(self) -> int:
        """Mel frames of sound."""
        return self.sound.content

    @property
    def start(self) -> tuple[int, ...]:
        return self.tokenizer.start(self.language, self.knobs.task)

    def heard(self, window: Window, width: int) -> Packed:
        """The window as the encoder takes it: mel [1, n_mels, width], what is not sound is 0."""
        mel = np.zeros((1, self.config.n_mels, width), np.float32)
        mel[0, :, : window.size] = self.sound.mel(window.seek, window.seek + window.size)
        return Packed.one({"mel": mel, "sound": np.array([window.size])})


@dataclass(slots=True)
class Story:
    """What has been said so far: tokens, those of them that the next prompt may hold, and where speech ended."""

    tokens: list[int]
    fresh: int = 0  # the prompt holds tokens from here on
    spoken_until: float = 0.0
    segments: list[Segment] = field(default_factory=list)


def rules_of(tokenizer: Tokenizer, config: WhisperConfig, knobs: TranscribeKnobs) -> Rules:
    """The knobs' token rules. A first timestamp of at most n seconds is n / 0.02 steps."""
    timed = not knobs.without_timestamps
    most = knobs.max_initial_timestamp
    steps = config.n_audio_ctx if most is None else round(most * config.n_audio_ctx / 30)
    mask = banned(tokenizer, config.n_vocab, knobs.suppress_tokens, timed)
    return Rules(mask, knobs.suppress_blank, timed, steps)


def transcribe(job: Job) -> Steps:
    """Pieces and segments of a request, first of all what is known of it."""
    if job.knobs.language is not None:
        job.language = job.knobs.language
    elif job.tokenizer.multilingual:
        job.language = yield from detect(job)
    seconds = job.content / FRAMES_PER_SECOND
    yield Emit("info", Packed.one([{"language": job.language, "duration": seconds, "task": job.knobs.task}]))
    if job.lanes > 1:
        yield from together([sequential(job, *span, Story(list(job.initial))) for span in spans(job)], job.lanes)
    else:
        story = Story(list(job.initial))
        for seek, stop in clips(job):
            yield from sequential(job, seek, stop, story)
    if job.full_windows:
        yield Emit("info", Packed.one([{"full_windows": job.full_windows}]))


def spans(job: Job) -> Iterator[tuple[int, int]]:
    """The clips, cut into stretches of at most a window where it is quiet."""
    for seek, stop in clips(job):
        yield from quiet_spans(job.sound.mel, seek, stop)


def detect(job: Job) -> Generator[Piece | Emit, Packed | None, str]:
    """The language of the first 30 s: the likeliest language token after the start token."""
    tokenizer = job.tokenizer
    tokens = [tokenizer.language_token(language) for language in tokenizer.languages]
    rules = only(tokens, job.config.n_vocab)
    window = Window(0, FRAMES)  # silence after the sound is as it was computed, not the padding of a window
    found = yield _piece(job, window, [tokenizer.sot], Attempt(FRAMES, rules, limit=1))
    assert found is not None
    return tokenizer.languages[tokens.index(int(found.values["id"][0]))]


def sequential(job: Job, seek: int, stop: int, story: Story) -> Steps:
    """Mel frames [seek, stop), one window after another."""
    while seek < stop:
        window = Window(seek, min(FRAMES, job.content - seek, stop - seek))
        decoded = yield from attempt(job, window, _context(job, story))
        if skipped(decoded, job.knobs):
            seek += window.size
            continue
        found = cut(window, decoded.tokens, job.tokenizer)
        kept = True
        if job.knobs.words:
            kept = yield from _with_words(job, window, found, story, decoded.width)
        seek = found.seek
        if kept:
            yield from _tell(job, story, found, decoded)


def clips(job: Job) -> Iterator[tuple[int, int]]:
    """Mel frames [start, stop) to transcribe, inside the sound: past its end the reference would never stop."""
    points = [round(seconds * FRAMES_PER_SECOND) for seconds in job.knobs.clip_timestamps] or [0]
    points = [min(point, job.content) for point in points]
    if len(points) % 2:
        points.append(job.content)
    return iter(zip(points[::2], points[1::2], strict=True))


def _context(job: Job, story: Story) -> list[int]:
    """The tokens that a window is conditioned on."""
    if not job.knobs.carry_initial_prompt:
        return story.tokens[story.fresh :]
    room = job.config.n_text_ctx // 2 - 1 - len(job.initial)
    rest = story.tokens[max(len(job.initial), story.fresh) :]
    return job.initial + rest[-room:]


def _tell(job: Job, story: Story, found: Cut, decoded: Decoded) -> Iterator[Emit]:
    """Hand the segments over and remember them."""
    segments = [finished(draft, decoded, job.knobs.words) for draft in found.drafts]
    story.tokens += [token for segment in segments for token in segment.tokens]
    if not job.knobs.condition_on_previous_text or decoded.temperature > 0.5:
        story.fresh = len(story.tokens)
    if segments:
        yield Emit("segments", Packed.one(segments))


def attempt(job: Job, window: Window, context: list[int]) -> Part:
    """Decode a window, warmer and warmer until no gate objects; before that, with all of its silence."""
    width = job.profile.width(window.size)
    decoded = None
    for temperature in job.knobs.temperatures:
        decoded = yield from _decode(job, window, context, temperature, width)
        if width < FRAMES and (rejected(decoded, job.knobs) or suspicious(decoded, window, job.tokenizer)):
            width, job.full_windows = FRAMES, job.full_windows + 1
            decoded = yield from _decode(job, window, context, temperature, width)
        if not rejected(decoded, job.knobs):
            break
    assert decoded is not None
    return decoded


def rejected(decoded: Decoded, knobs: TranscribeKnobs) -> bool:
    """Too repetitive, or too improbable while not silent."""
    unlikely = knobs.logprob_threshold is not None and decoded.avg_logprob < knobs.logprob_threshold
    repetitive = (
        knobs.compression_ratio_threshold is not None and decoded.compression_ratio > knobs.compression_ratio_threshold
    )
    silent = knobs.no_speech_threshold is not None and decoded.no_speech_prob > knobs.no_speech_threshold
    return (unlikely or repetitive) and not (silent and unlikely)


def suspicious(decoded: Decoded, window: Window, tokenizer: Tokenizer) -> bool:
    """What too little silence behind the sound makes of a window: no end, a loop, or speech after the sound."""
    last = max((token - tokenizer.timestamps for token in decoded.tokens), default=0)
    late = last * FRAMES_PER_STEP > window.size + LATE
    return late or not decoded.ended or loops([token for token in decoded.tokens if token < tokenizer.eot])


def loops(tokens: Sequence[int]) -> bool:
    """Whether a run of at least `LOOP` tokens is said twice in a row."""
    return any(
        tokens[i : i + n] == tokens[i + n : i + 2 * n]
        for n in range(LOOP, len(tokens) // 2 + 1)
        for i in range(len(tokens) - 2 * n + 1)
    )


def skipped(decoded: Decoded, knobs: TranscribeKnobs) -> bool:
    """The window holds no speech, and the text is not probable enough to contradict that."""
    if knobs.no_speech_threshold is None or decoded.no_speech_prob <= knobs.no_speech_threshold:
        return False
    return knobs.logprob_threshold is None or decoded.avg_logprob <= knobs.logprob_threshold


def prompt_of(job: Job, context: list[int]) -> tuple[list[int], int]:
    """The decoder's first tokens, and where in them the transcript starts."""
    tokens = [*job.start, *([] if job.rules.timed else [job.tokenizer.no_timestamps]), *job.prefix]
    if not context:
        return tokens, 0
    before = [job.tokenizer.sot_prev, *context[-(job.config.n_text_ctx // 2 - 1) :]]
    return before + tokens, len(before)


def _decode(job: Job, window: Window, context: list[int], temperature: float, width: int) -> Part:
    prompt, start = prompt_of(job, context)
    limit = min(job.config.n_text_ctx // 2, job.config.n_text_ctx - len(prompt) + 1)
    job.attempts += 1
    found = yield _piece(job, window, prompt, Attempt(width, job.rules, limit, start, temperature, job.attempts))
    assert found is not None
    return read(found, temperature, job.tokenizer, width)


def read(found: Packed, temperature: float, tokenizer: Tokenizer, width: int = FRAMES) -> Decoded:
    """The decoder's items, summed up; the end token counts in the mean log-probability, chosen or not."""
    ids = found.values["id"].tolist()
    tokens = ids[: ids.index(tokenizer.eot)] if tokenizer.eot in ids else ids
    total = found.values["logprob"].astype(np.float32).cumsum(dtype=np.float32)[-1]
    text = tokenizer.decode(tokens).strip()
    return Decoded(
        tokens,
        text,
        temperature,
        float(total) / (len(tokens) + 1),
        float(found.values["no_speech"][0]),
        compression_ratio(text),
        width,
        len(tokens) < len(ids),
    )


def compression_ratio(text: str) -> float:
    """Bytes of the text to bytes of it compressed: high where it repeats itself."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))


def _piece(job: Job, window: Window, prompt: list[int], how: Attempt) -> Piece:
    inputs = {
        "encoder.window": job.heard(window, how.width),
        "decoder.prompt": Packed.one(np.array(prompt, np.int64)),
    }
    needs = {"cross_kv": Need(how.width // 2), "decoder_kv": Need(len(prompt) + how.limit - 1)}
    return Piece("window", inputs, how, needs, result="decoder.tokens")


def _with_words(
    job: Job, window: Window, found: Cut, story: Story, width: int
) -> Generator[Piece | Emit, Packed | None, bool]:
    """Time the words, move `found.seek` accordingly; False: a hallucination, nothing of the window is kept."""
    text = [token for draft in found.drafts for token in draft.tokens if token < job.tokenizer.eot]
    timings = []
    if text:
        tokens = [*job.start, job.tokenizer.no_timestamps, *text, job.tokenizer.eot]
        items = yield _align_piece(job, window, tokens, width)
        assert items is not None
        scores = torch.from_numpy(np.ascontiguousarray(items.values["scores"]))
        lead = len(job.start)
        timings = align(scores, items.values["next"], text, lead, window.size, job.tokenizer, job.language)
    knobs = job.knobs
    marks = (knobs.prepend_punctuations, knobs.append_punctuations)
    place(found.drafts, timings, window, job.tokenizer.eot, marks, story.spoken_until)
    end = last_word_end(found.drafts)
    if not found.closed and end is not None and end > window.start:
        found.seek = round(end * FRAMES_PER_SECOND)
    if knobs.hallucination_silence_threshold is not None:
        rule = Silence(knobs.hallucination_silence_threshold, PREPEND + APPEND, job.content)
        if not rule.apply(window, found, story.spoken_until):
            return False
    end = last_word_end(found.drafts)
    if end is not None:
        story.spoken_until = end
    return True


def _align_piece(job: Job, window: Window, tokens: list[int], width: int) -> Piece:
    inputs = {
        "encoder.window": job.heard(window, width),
        "aligner.text": Packed.one(np.array(tokens, np.int64)),
    }
    needs = {"cross_kv": Need(width // 2), "align_kv": Need(len(tokens))}
    return Piece("align", inputs, Heard(width), needs, result="aligner.items")
