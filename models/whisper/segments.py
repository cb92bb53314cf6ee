"""A window's tokens cut into segments at its time tokens, and words put into them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from models.whisper.config import FRAMES, FRAMES_PER_SECOND
from models.whisper.timing import (
    Timing,
    median_duration,
    merge_punctuation,
    shorten_at_sentence_ends,
)
from models.whisper.tokenizer import Tokenizer
from serving.core.contract import Segment, Word

STEP = 0.02  # seconds a time token
FRAMES_PER_STEP = 2


@dataclass(frozen=True, slots=True)
class Window:
    """Mel frames [seek, seek + size) of the audio, padded to 30 s."""

    seek: int
    size: int

    @property
    def start(self) -> float:
        """Seconds."""
        return self.seek / FRAMES_PER_SECOND

    @property
    def stop(self) -> float:
        """Where a window of 30 s would end, whatever its size."""
        return (self.seek + 3000) / FRAMES_PER_SECOND

    @property
    def duration(self) -> float:
        return self.size / FRAMES_PER_SECOND


@dataclass(slots=True)
class Spoken:
    """A word in a segment; seconds from the start of the audio."""

    word: str
    start: float
    end: float
    probability: float


@dataclass(slots=True)
class Draft:
    """A segment in the making; seconds from the start of the audio."""

    start: float
    end: float
    tokens: list[int]
    text: str
    words: list[Spoken] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one attempt at a window gave: tokens before the end token, and the figures that the gates look at."""

    tokens: list[int]
    text: str
    temperature: float
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    width: int = FRAMES  # mel frames that the encoder was given
    ended: bool = True  # by the end token, not by the limit


@dataclass(slots=True)
class Cut:
    """A window's segments, and where the next window starts.

    `closed`: the last time token stands alone, so nothing is said after it in this window.
    """

    drafts: list[Draft]
    seek: int
    closed: bool


def cut(window: Window, tokens: Sequence[int], tokenizer: Tokenizer) -> Cut:
    """Segments lie between pairs of time tokens. An unfinished one at the end is left to the next window."""
    stamps = np.array(tokens, np.int64) >= tokenizer.timestamps
    closed = stamps[-2:].tolist() == [False, True]
    ends = (np.flatnonzero(stamps[:-1] & stamps[1:]) + 1).tolist()
    if not ends:
        draft = _draft(window, tokens, 0.0, _end_of_single(window, tokens, stamps, tokenizer), tokenizer)
        return Cut([draft], window.seek + window.size, closed)
    if closed:
        ends.append(len(tokens))
    drafts = []
    for first, stop in zip([0, *ends], ends, strict=False):
        part = tokens[first:stop]
        start, end = ((token - tokenizer.timestamps) * STEP for token in (part[0], part[-1]))
        drafts.append(_draft(window, part, start, end, tokenizer))
    if closed:
        return Cut(drafts, window.seek + window.size, closed)
    last = tokens[ends[-1] - 1] - tokenizer.timestamps
    return Cut(drafts, window.seek + last * FRAMES_PER_STEP, closed)


def _draft(window: Window, tokens: Sequence[int], start: float, end: float, tokenizer: Tokenizer) -> Draft:
    text = tokenizer.decode([token for token in tokens if token < tokenizer.eot])
    return Draft(window.start + start, window.start + end, list(tokens), text)


def _end_of_single(window: Window, tokens: Sequence[int], stamps: np.ndarray, tokenizer: Tokenizer) -> float:
    """Seconds from the window's start: its last time token unless that is 0, else its duration."""
    times = [token for token, stamp in zip(tokens, stamps, strict=True) if stamp]
    if times and times[-1] != tokenizer.timestamps:
        return (times[-1] - tokenizer.timestamps) * STEP
    return window.duration


def place(
    drafts: Sequence[Draft],
    timings: list[Timing],
    window: Window,
    eot: int,
    marks: tuple[str, str],
    spoken_until: float,
) -> None:
    """Give the segments their words, and their times the words'. `marks`: joined to the next, to the previous word.

    `spoken_until`: where the last word before this window ended, in seconds.
    """
    usual = median_duration(timings)
    shorten_at_sentence_ends(timings, 2 * usual)
    merge_punctuation(timings, *marks)
    left = iter(timings)
    for draft in drafts:
        draft.words = list(_take(left, sum(token < eot for token in draft.tokens), window.start))
        if draft.words:
            _shorten_after_pause(draft.words, spoken_until, usual)
            _agree(draft, usual)
            spoken_until = draft.end


def _take(timings: Iterator[Timing], count: int, offset: float) -> Iterator[Spoken]:
    """Words of the next timings, until they hold `count` tokens."""
    while count > 0 and (timing := next(timings, None)) is not None:
        count -= len(timing.tokens)
        if timing.word:
            start, end = (round(offset + t, 2) for t in (timing.start, timing.end))
            yield Spoken(timing.word, start, end, timing.probability)


def _shorten_after_pause(words: list[Spoken], spoken_until: float, usual: float) -> None:
    """After a pause the first two words are not longer than twice the usual."""
    first, second, longest = words[0], words[1] if len(words) > 1 else None, 2 * usual
    if first.end - spoken_until <= 4 * usual:
        return
    if first.end - first.start <= longest and (second is None or second.end - first.start <= 2 * longest):
        return
    if second is not None and second.end - second.start > longest:
        first.end = second.start = max(second.end / 2, second.end - longest)
    first.start = max(0, first.end - longest)


def _agree(draft: Draft, usual: float) -> None:
    """A segment starts and ends with its words, unless its own times say that they are too long."""
    first, last = draft.words[0], draft.words[-1]
    if draft.start < first.end and draft.start - 0.5 > first.start:
        first.start = max(0, min(first.end - usual, draft.start))
    else:
        draft.start = first.start
    if draft.end > last.start and draft.end + 0.5 < last.end:
        last.end = max(last.start + usual, draft.end)
    else:
        draft.end = last.end


def last_word_end(drafts: Sequence[Draft]) -> float | None:
    """Where the last word ends; where there are no words, the last segment."""
    ends = [word.end for draft in drafts for word in draft.words]
    return ends[-1] if ends else (drafts[-1].end if drafts else None)


def finished(draft: Draft, decoded: Decoded, words: bool) -> Segment:
    """The segment as the client sees it; one without text or length is emptied."""
    empty = draft.start == draft.end or not draft.text.strip()
    if empty:
        draft.text, draft.tokens, draft.words = "", [], []
    spoken = tuple(Word(float(w.start), float(w.end), w.word, w.probability) for w in draft.words)
    return Segment(
        float(draft.start),
        float(draft.end),
        draft.text,
        tuple(draft.tokens),
        decoded.temperature,
        decoded.avg_logprob,
        decoded.compression_ratio,
        decoded.no_speech_prob,
        spoken if words else None,
    )
