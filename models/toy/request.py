"""The toy's knobs."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from models.base import Knobs


class SpeakKnobs(Knobs):
    """Text to sound."""

    voice: Literal["low", "high"] = "low"
    temperature: float = Field(0.0, ge=0.0, le=2.0)
    top_k: int = Field(0, ge=0, le=64)
    cfg_weight: float = Field(0.5, ge=0.0, le=4.0, description="guidance; 0 runs one lane")
    max_new_tokens: int = Field(24, ge=1, le=512)
    ignore_eos: bool = False
    sentence_chunking: bool = True


class PaintKnobs(Knobs):
    """Text to a picture."""

    size: Literal["8x8", "16x8", "16x16"] = "8x8"
    steps: int = Field(6, ge=1, le=50)
    guidance: float = Field(2.0, ge=0.0, le=10.0)
    guidance_until: float = Field(0.5, ge=0.0, le=1.0, description="part of the steps that run with guidance")


class ListenKnobs(Knobs):
    """A stream of samples in, a token a frame out; a session remembers what it heard."""

    TAKES: ClassVar = ("text", "audio")

    gain: float = Field(1.0, gt=0.0, le=10.0)
