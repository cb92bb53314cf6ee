"""Kokoro's request knobs, and what a deployment may set."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from models.base import Knobs
from models.kokoro.config import MAX_PHONEMES

LangCode = Literal["a", "b", "e", "f", "h", "i", "j", "p", "z"]


class SpeakKnobs(Knobs):
    """Text to speech."""

    voice: str = Field(
        "af_heart",
        min_length=1,
        max_length=200,
        description='a voice, or a blend of some: "af_bella+af_sky", "af_bella(2)+af_sky(1)"',
    )
    speed: float = Field(1.0, ge=0.25, le=4.0, description="1 is the voice's own pace")
    lang_code: LangCode | None = Field(
        None,
        description="language of the text, by default that of the voice: a American English, b British English,"
        " e Spanish, f French, h Hindi, i Italian, j Japanese, p Brazilian Portuguese, z Mandarin",
    )
    phonemes: str | None = Field(None, description="speak these phonemes and leave the text aside")


class Deployment(BaseModel):
    """Kokoro's own options, under `options:` in a deployment's YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Literal["package", "hub"] = "package"
    voices: str | None = Field(None, description="a folder of more voices: NAME.bin (float32) or NAME.pt")
    lang_code: LangCode | None = Field(None, description="the language of every request that names none")
    espeak: bool = Field(False, description="use espeak-ng (GPL) where it is installed: rare words, e f h i p")
    chunk_target_phonemes: int = Field(150, ge=1, le=MAX_PHONEMES)
    first_chunk_target_phonemes: int = Field(50, ge=1, le=MAX_PHONEMES)
    text_buckets: tuple[int, ...] = (*range(16, 129, 16), *range(160, 513, 32))
    frame_buckets: tuple[int, ...] = (
        *range(16, 257, 16),
        *range(288, 641, 32),
        *range(704, 1281, 64),
        *range(1408, 2049, 128),
    )
    batch_rows: int | None = Field(None, ge=1, le=64, description="rows a step; by default 1 on a CPU, else 4")
