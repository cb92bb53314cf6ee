"""`/v1/audio/transcriptions` and `/v1/audio/translations`: request fields, and the five ways to write the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import Field

from serving.api.fields import Own, Seeded
from serving.core.contract import Segment

Format = Literal["json", "text", "srt", "verbose_json", "vtt"]
Granularity = Literal["word", "segment"]


class Translation(Seeded):
    """Fields of OpenAI's translation form, the file aside."""

    prompt: Annotated[str | None, Field(max_length=4096), Own.MODEL] = None
    response_format: Format = "json"
    temperature: Annotated[float, Field(ge=0, le=1), Own.MODEL] = 0.0


class Transcription(Translation):
    """Fields of OpenAI's transcription form, the file aside."""

    language: Annotated[str | None, Field(min_length=1, max_length=32), Own.MODEL] = None
    timestamp_granularities: Annotated[tuple[Granularity, ...], Own.MODEL] = ("segment",)
    stream: bool = False
    chunking_strategy: Annotated[str | dict[str, Any] | None, Own.HINT] = None
    include: Annotated[tuple[str, ...], Own.REFUSED] = ()
    keywords: Annotated[tuple[str, ...], Own.MODEL] = ()
    languages: Annotated[tuple[str, ...], Own.MODEL] = ()
    known_speaker_names: Annotated[tuple[str, ...], Own.MODEL] = ()
    known_speaker_references: Annotated[tuple[str, ...], Own.REFUSED] = ()


def whole_text(segments: Iterable[Segment]) -> str:
    return "".join(segment.text for segment in segments).strip()


class Deltas:
    """Cuts a growing text into deltas whose concatenation is the stripped final text: outer space never leaves."""

    def __init__(self) -> None:
        self.sent = ""
        self._space = ""

    def push(self, text: str) -> str:
        """The next delta, "" where there is none yet."""
        pending = self._space + text if self.sent else text.lstrip()
        delta = pending.rstrip()
        if not delta:
            self._space = pending
            return ""
        self._space = pending[len(delta) :]
        self.sent += delta
        return delta


def usage(seconds: float) -> dict[str, Any]:
    return {"type": "duration", "seconds": round(seconds, 3)}


def verbose(
    segments: Sequence[Segment],
    info: Mapping[str, Any],
    seconds: float,
    granularities: Sequence[str],
    task: str,
) -> dict[str, Any]:
    """OpenAI's verbose_json. `seek` is the segment's start in the 10 ms frames Whisper counts in."""
    body: dict[str, Any] = {
        "task": task,
        "language": info.get("language", "unknown"),
        "duration": round(seconds, 3),
        "text": whole_text(segments),
        "usage": usage(seconds),
    }
    if "full_windows" in info:  # an extension: windows whose trimmed form was not trusted
        body["full_windows"] = info["full_windows"]
    if "segment" in granularities:
        body["segments"] = [_segment(i, segment) for i, segment in enumerate(segments)]
    if "word" in granularities:
        words = (word for segment in segments for word in segment.words or ())
        body["words"] = [{"word": w.word.strip(), "start": w.start, "end": w.end} for w in words]
    return body


def _segment(index: int, segment: Segment) -> dict[str, Any]:
    fields = asdict(segment)
    fields.pop("words")
    return {"id": index, "seek": round(segment.start * 100), **fields, "tokens": list(segment.tokens)}


def srt(segments: Iterable[Segment]) -> str:
    cues = (
        f"{i}\n{_clock(s.start, ',')} --> {_clock(s.end, ',')}\n{_cue(s.text)}\n"
        for i, s in enumerate(segments, start=1)
    )
    return "\n".join(cues)


def vtt(segments: Iterable[Segment]) -> str:
    cues = (f"{_clock(s.start, '.')} --> {_clock(s.end, '.')}\n{_cue(s.text)}\n" for s in segments)
    return "\n".join(["WEBVTT\n", *cues])


def _cue(text: str) -> str:
    """A cue's text: one line, and no arrow, which would end the cue."""
    return " ".join(text.split()).replace("-->", "->")


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(max(0.0, seconds) * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{milliseconds // 1000:02d}{point}{milliseconds % 1000:03d}"
