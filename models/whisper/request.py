"""The request's knobs: OpenAI's transcription fields, then openai-whisper's options under their own names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from models.base import Knobs
from models.whisper.languages import LANGUAGES, language_code
from serving.errors import nearest

Temperature = Annotated[float, Field(ge=0.0, le=1.0)]
PREPEND = "\"'“¿([{-"
APPEND = "\"'.。,，!！?？:：”)]}、"


class TranscribeKnobs(Knobs):
    """Speech to text. Thresholds of None switch their gate off."""

    language: str | None = Field(None, description="a code or an English name; None: detect it")
    prompt: str | None = Field(None, description="text that comes before, to set style and spelling")
    temperature: Temperature = Field(0.0, description="0: greedy, and warmer where a gate rejects the result")
    word_timestamps: bool = Field(False, description="when each word was said")
    timestamp_granularities: tuple[Literal["word", "segment"], ...] = Field(
        ("segment",), description='OpenAI\'s way to ask for the times of words: with "word" in it'
    )
    task: Literal["transcribe", "translate"] = "transcribe"
    prefix: str | None = Field(None, description="text that every window's transcript starts with")
    fallback_temperatures: tuple[Temperature, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    compression_ratio_threshold: float | None = Field(2.4, gt=0)
    logprob_threshold: float | None = Field(-1.0, le=0)
    no_speech_threshold: float | None = Field(0.6, ge=0, le=1)
    condition_on_previous_text: bool = True
    carry_initial_prompt: bool = False
    without_timestamps: bool = Field(False, description="one segment a window, no time tokens in it")
    max_initial_timestamp: float | None = Field(1.0, gt=0, le=30, description="seconds")
    suppress_tokens: tuple[int, ...] = Field((-1,), description="token ids; -1: whatever is not spoken")
    suppress_blank: bool = True
    windowing: Literal["sequential", "parallel"] = Field(
        "sequential",
        description='"parallel": long sound is cut where it is quiet, and no part knows what was said before it; '
        "faster, and not the reference's algorithm",
    )
    clip_timestamps: tuple[Annotated[float, Field(ge=0)], ...] = Field(
        (0.0,), description="seconds: start, end, start, ...; the last end is the end of the audio"
    )
    hallucination_silence_threshold: float | None = Field(None, gt=0, description="seconds; needs word times")
    prepend_punctuations: str = PREPEND
    append_punctuations: str = APPEND

    @field_validator("language")
    @classmethod
    def _code(cls, name: str | None) -> str | None:
        code = None if name is None else language_code(name)
        if name is not None and code is None:
            raise ValueError(f'"{name}" is no language of Whisper.{nearest(name.lower(), LANGUAGES)}')
        return code

    @field_validator("clip_timestamps")
    @classmethod
    def _ascending(cls, times: tuple[float, ...]) -> tuple[float, ...]:
        if list(times) != sorted(times):
            raise ValueError("must ascend")
        return times

    @model_validator(mode="after")
    def _together(self) -> TranscribeKnobs:
        if self.hallucination_silence_threshold is not None and not self.words:
            raise ValueError("hallucination_silence_threshold needs word_timestamps")
        return self

    @property
    def words(self) -> bool:
        """Whether words are timed."""
        return self.word_timestamps or "word" in self.timestamp_granularities

    @property
    def temperatures(self) -> tuple[float, ...]:
        """In the order in which they are tried."""
        return (self.temperature,) if self.temperature > 0 else (0.0, *self.fallback_temperatures)
