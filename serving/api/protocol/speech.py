"""`/v1/audio/speech`: request fields and the events of its stream."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from serving.api.fields import Own, Seeded

Format = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
DEFAULT_VOICE = "default"


def not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must hold something to say, not only spaces.")
    return text


class VoiceId(BaseModel):
    """OpenAI's other way to name a voice."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Annotated[str, Field(min_length=1, max_length=256)]


class Speech(Seeded):
    """Fields of OpenAI's speech request, and `stream`: send audio as it is made, before its length is known."""

    input: Annotated[str, Field(min_length=1), AfterValidator(not_blank)]
    voice: Annotated[str, Field(min_length=1, max_length=256)] | VoiceId = DEFAULT_VOICE
    instructions: Annotated[str | None, Own.MODEL] = None
    response_format: Format = "mp3"
    speed: Annotated[float, Field(ge=0.25, le=4.0), Own.MODEL] = 1.0
    stream_format: Literal["audio", "sse"] = "audio"
    stream: bool = False

    @property
    def voice_name(self) -> str:
        return self.voice if isinstance(self.voice, str) else self.voice.id


def delta(data: bytes) -> dict[str, Any]:
    return {"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()}


def done(info: Mapping[str, Any]) -> dict[str, Any]:
    """The last event; token counts are the model's own, 0 where it counts none."""
    given, made = int(info.get("input_tokens", 0)), int(info.get("output_tokens", 0))
    counts = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
    return {"type": "speech.audio.done", "usage": counts}
