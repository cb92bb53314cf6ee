"""`/v1/realtime`, transcription sessions: OpenAI's client events, typed, and its server events."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

RATE = 24_000


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Format(Part):
    type: Literal["audio/pcm"] = "audio/pcm"  # 16-bit little-endian, mono
    rate: Annotated[int, Field(ge=8000, le=48_000)] = RATE


class Transcription(Part):
    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class Input(Part):
    format: Format = Format()
    transcription: Transcription = Transcription()
    turn_detection: None = None  # the client commits
    noise_reduction: None = None


class AudioConfig(Part):
    input: Input = Input()


class Session(Part):
    type: Literal["transcription"] = "transcription"
    audio: AudioConfig = AudioConfig()
    include: Annotated[tuple[str, ...], Field(max_length=0)] = ()


class ClientEvent(Part):
    event_id: Annotated[str | None, Field(max_length=512)] = None


class Update(ClientEvent):
    type: Literal["session.update"]
    session: Session


class Append(ClientEvent):
    type: Literal["input_audio_buffer.append"]
    audio: str


class Commit(ClientEvent):
    type: Literal["input_audio_buffer.commit"]


class Clear(ClientEvent):
    type: Literal["input_audio_buffer.clear"]


class CancelAll(ClientEvent):
    type: Literal["response.cancel"]
    response_id: str | None = None


EVENTS: Mapping[str, type[ClientEvent]] = {
    "session.update": Update,
    "input_audio_buffer.append": Append,
    "input_audio_buffer.commit": Commit,
    "input_audio_buffer.clear": Clear,
    "response.cancel": CancelAll,
}
TRANSCRIPTION = "conversation.item.input_audio_transcription"


def identifier(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:24]}"


def event(kind: str, **fields: Any) -> dict[str, Any]:
    """A server event with an id of its own."""
    return {"type": kind, "event_id": identifier("event"), **fields}
