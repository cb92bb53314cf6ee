"""`/v1/chat/completions`: request fields, and the shapes of whole and streamed answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from serving.api.fields import Own, Seeded
from serving.core.contract import TokenLogprob, ToolCall


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TextPart(Part):
    type: Literal["text"]
    text: str


class Link(Part):
    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class ImagePart(Part):
    type: Literal["image_url"]
    image_url: Link


class AudioData(Part):
    data: str
    format: Literal["wav", "mp3", "flac", "opus", "ogg"]


class AudioPart(Part):
    type: Literal["input_audio"]
    input_audio: AudioData


class VideoPart(Part):
    type: Literal["video_url"]
    video_url: Link


AnyPart = Annotated[TextPart | ImagePart | AudioPart | VideoPart, Field(discriminator="type")]


class FunctionCall(Part):
    name: Annotated[str, Field(min_length=1)]
    arguments: str = "{}"


class ToolCallPart(Part):
    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Part):
    """One message. What a client got as an answer can be sent back as it is."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | tuple[AnyPart, ...] | None = None
    name: str | None = None
    tool_calls: tuple[ToolCallPart, ...] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: tuple[dict[str, Any], ...] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Message:
        if self.role != "assistant":
            extra = [name for name in ("tool_calls", "reasoning_content") if getattr(self, name)]
            if extra:
                raise ValueError(f"{extra[0]} belongs to the role assistant")
        if self.role == "tool" and not self.tool_call_id:
            raise ValueError("the role tool needs tool_call_id")
        if self.content is None and not (self.tool_calls or self.refusal):
            raise ValueError(f"the role {self.role} needs content")
        return self


class AudioOut(Part):
    voice: str | dict[str, Any]
    format: Literal["wav", "mp3", "flac", "opus", "aac", "pcm16"]


class StreamOptions(Part):
    include_usage: bool = False
    include_obfuscation: bool = False


Penalty = Annotated[float, Field(ge=-2, le=2), Own.MODEL]


class Chat(Seeded):
    """Fields of OpenAI's chat request."""

    messages: Annotated[tuple[Message, ...], Field(min_length=1)]
    n: Annotated[int, Field(ge=1)] = 1
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    modalities: tuple[Literal["text", "audio"], ...] = ("text",)
    audio: AudioOut | None = None
    temperature: Annotated[float, Field(ge=0, le=2), Own.MODEL] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1), Own.MODEL] = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    stop: Annotated[str | tuple[str, ...] | None, Own.MODEL] = None
    logit_bias: Annotated[dict[str, float] | None, Own.MODEL] = None
    logprobs: Annotated[bool, Own.MODEL] = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=20), Own.MODEL] = None
    response_format: Annotated[dict[str, Any] | None, Own.MODEL] = None
    tools: Annotated[tuple[dict[str, Any], ...], Own.MODEL] = ()
    tool_choice: Annotated[str | dict[str, Any] | None, Own.MODEL] = None
    reasoning_effort: Annotated[str | None, Own.HINT] = None
    verbosity: Annotated[str | None, Own.HINT] = None
    prediction: Annotated[dict[str, Any] | None, Own.HINT] = None
    parallel_tool_calls: Annotated[bool, Own.HINT] = True
    metadata: Annotated[dict[str, str] | None, Own.IGNORED] = None
    store: Annotated[bool, Own.IGNORED] = False
    user: Annotated[str | None, Own.IGNORED] = None
    safety_identifier: Annotated[str | None, Own.IGNORED] = None
    service_tier: Annotated[str | None, Own.IGNORED] = None
    prompt_cache_key: Annotated[str | None, Own.IGNORED] = None
    prompt_cache_options: Annotated[dict[str, Any] | None, Own.IGNORED] = None
    prompt_cache_retention: Annotated[str | None, Own.IGNORED] = None
    functions: Annotated[tuple[dict[str, Any], ...], Own.REFUSED] = ()
    function_call: Annotated[str | dict[str, Any] | None, Own.REFUSED] = None
    moderation: Annotated[dict[str, Any] | None, Own.REFUSED] = None
    web_search_options: Annotated[dict[str, Any] | None, Own.REFUSED] = None


def usage(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Token counts as the model gives them, of all choices; the prompt is one and counts once."""
    given = int(infos[0].get("input_tokens", 0)) if infos else 0
    made = sum(int(info.get("output_tokens", 0)) for info in infos)
    counts: dict[str, Any] = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
    if any("cached_tokens" in info for info in infos):
        counts["prompt_tokens_details"] = {"cached_tokens": int(infos[0].get("cached_tokens", 0))}
    if any("reasoning_tokens" in info for info in infos):
        thought = sum(int(info.get("reasoning_tokens", 0)) for info in infos)
        counts["completion_tokens_details"] = {"reasoning_tokens": thought}
    return counts


def logprobs(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """OpenAI's log-probabilities of a choice."""
    content = [_logprob(token) | {"top_logprobs": [_logprob(one) for one in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def _logprob(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.data.decode(errors="replace"), "logprob": token.logprob, "bytes": list(token.data)}


def tool_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


class Shapes:
    """Bodies of one answer: what they share is its id, its time and its model."""

    def __init__(self, request_id: str, model: str, seed: int, *, counted: bool = False) -> None:
        """`counted`: the chunks of a stream have a place for usage."""
        self.head = {
            "id": request_id.replace("req_", "chatcmpl-", 1),
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"seed-{seed}",
        }
        self.counted = {"usage": None} if counted else {}

    def whole(self, choices: list[dict[str, Any]], tokens: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        return {**self.head, "object": "chat.completion", "choices": choices, "usage": tokens, **more}

    def chunk(self, index: int, delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": finish, "logprobs": None, **more}
        return {**self.head, "object": "chat.completion.chunk", "choices": [choice], **self.counted}

    def tokens(self, tokens: Mapping[str, Any]) -> dict[str, Any]:
        """The last chunk where the client asked for usage: it has no choice."""
        return {**self.head, "object": "chat.completion.chunk", "choices": [], "usage": tokens}
