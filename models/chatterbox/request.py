"""The requests' knobs, with the packages' own defaults, and what a deployment may set."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from models.base import Knobs

GREEDY = 1e-5  # temperatures below choose the most likely token
LanguageId = Literal[
    "ar", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "it", "ja", "ko", "ms", "nl", "no", "pl", "pt", "ru",
    "sv", "sw", "tr", "zh",
]  # fmt: skip
LANGUAGES: tuple[str, ...] = get_args(LanguageId)


class SpeakKnobs(Knobs):
    """Text to speech in a voice of the server's, or in that of a clip."""

    TAKES: ClassVar = ("text", "voice")
    IGNORES: ClassVar[tuple[str, ...]] = ()  # accepted without effect

    voice: str = Field("default", min_length=1, max_length=64, description="a voice of this server")
    ref_audio: str | None = Field(
        None, min_length=1, description="a clip whose voice to speak in, 5 to 30 s: a data URL or base64"
    )
    exaggeration: float = Field(0.5, ge=0.0, le=2.0, description="intensity of emotion")
    cfg_weight: float = Field(0.5, ge=0.0, le=1.0, description="guidance by the text; 0 halves the work")
    temperature: float = Field(0.8, ge=0.0, le=5.0, description="below 0.00001: always the most likely token")
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=0, le=1 << 20, description="0, or the vocabulary's size or more: no filter")
    min_p: float = Field(0.05, ge=0.0, le=1.0)
    repetition_penalty: float = Field(1.2, gt=0.0, le=2.0)
    n_cfm_timesteps: int = Field(10, ge=1, le=100, description="steps of the flow that makes the mel")
    max_new_tokens: int | None = Field(
        None, ge=1, description="most speech tokens, 25 a second; by default what the deployment allows"
    )
    ignore_eos: bool = Field(False, description="speak on past the end, to max_new_tokens")
    watermark: bool = Field(True, description="mark the sound as synthetic")
    sentence_chunking: bool = Field(False, description="speak long text in groups of sentences, in order")


def _lower(given: object) -> object:
    """The package takes codes in capitals too."""
    return given.lower() if isinstance(given, str) else given


class MultilingualKnobs(SpeakKnobs):
    """The same in 23 languages."""

    language_id: Annotated[LanguageId | None, BeforeValidator(_lower)] = Field(
        None, description="by default the deployment's"
    )
    repetition_penalty: float = Field(2.0, gt=0.0, le=2.0)


class TurboKnobs(SpeakKnobs):
    """The distilled model: guidance, emotion and min_p do nothing in it, as in its package."""

    IGNORES: ClassVar[tuple[str, ...]] = ("cfg_weight", "exaggeration", "min_p")

    exaggeration: float = Field(0.0, ge=0.0, le=2.0, description="without effect")
    cfg_weight: float = Field(0.0, ge=0.0, le=1.0, description="without effect")
    min_p: float = Field(0.0, ge=0.0, le=1.0, description="without effect")
    top_p: float = Field(0.95, gt=0.0, le=1.0)
    top_k: int = Field(1000, ge=0, le=1 << 20, description="0, or the vocabulary's size or more: no filter")
    n_cfm_timesteps: int = Field(2, ge=1, le=100, description="steps of the mean flow that makes the mel")


class Deployment(BaseModel):
    """Chatterbox's own options, under `options:` in a deployment's YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    voices_dir: str | None = Field(None, description="a folder of voices: NAME.pt, as the package saves them")
    default_language: LanguageId = "en"
    max_new_tokens_limit: int = Field(1000, ge=1, le=4096)
    max_text_tokens: int = Field(512, ge=1, le=2048)
    prefill_tokens: int | None = Field(None, ge=1, description="most tokens of a step of T3; by default the device's")
    t3_dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    watermark: bool = True
    voices_kept: int = Field(64, ge=1, description="voices of clips that stay ready to speak")
    stream_first_chunk_tokens: int | None = Field(None, ge=1, description="by default the model's own")
    stream_chunk_tokens: int = Field(50, ge=0, description="0: streams are whole too, as the package speaks")
    stream_chunk_growth: int = Field(2, ge=1)
    stream_max_chunk_tokens: int = Field(200, ge=1)
    stream_context_tokens: int = Field(25, ge=0, description="settled tokens before a chunk; 0: all of them")
    s3gen_max_batch_size: int = Field(8, ge=1)
