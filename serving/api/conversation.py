"""The messages of a conversation with their media decoded, as a port takes them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from serving.api.media.decode import decode_audio
from serving.api.media.images import decode_image, from_base64
from serving.api.media.video import decode_video
from serving.api.protocol.chat import AnyPart, AudioPart, ImagePart, Message, TextPart, VideoPart
from serving.api.run import Call
from serving.errors import BadRequest

INPUTS = {"text": "text", "image_url": "image", "input_audio": "audio", "video_url": "video"}


async def decoded(call: Call, messages: Sequence[Message], able: frozenset[str]) -> list[dict[str, Any]]:
    """Each message as a mapping: pictures are uint8 [H, W, 3], sound `Audio`, films `Video`.

    `able`: the kinds of input that the model takes. What is too much is refused before the first is fetched.
    """
    _check_counts(call, messages)
    for i, message in enumerate(messages):
        for j, part in enumerate(message.content if isinstance(message.content, tuple) else ()):
            _require(part, able, call.exchange.model, f"messages.{i}.content.{j}")
    return [await _message(call, i, message) for i, message in enumerate(messages)]


def _check_counts(call: Call, messages: Sequence[Message]) -> None:
    parts = [part for message in messages if isinstance(message.content, tuple) for part in message.content]
    limits = call.api.settings.limits
    for kind, name, limit in ((ImagePart, "pictures", limits.images), (VideoPart, "films", limits.videos)):
        count = sum(isinstance(part, kind) for part in parts)
        if count > limit:
            raise BadRequest(f'"messages" may hold at most {limit} {name}, got {count}.', param="messages")


def _require(part: AnyPart, able: frozenset[str], model: str, where: str) -> None:
    name = INPUTS[part.type]
    if name not in able:
        message = f'Model "{model}" takes no {name} in messages.'
        raise BadRequest(message, param=where, code="unsupported_parameter")


async def _message(call: Call, index: int, message: Message) -> dict[str, Any]:
    shown = message.model_dump(exclude={"content", "annotations"}, exclude_none=True)
    content: Any = message.content
    if isinstance(content, tuple):
        content = [await _part(call, part, f"messages.{index}.content.{i}") for i, part in enumerate(content)]
    return {**shown, "content": content}


async def _part(call: Call, part: AnyPart, where: str) -> dict[str, Any]:
    limits = call.api.settings.limits
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        name = f"{where}.image_url.url"
        data = await call.api.fetcher.read(part.image_url.url, name)
        pixels = await call.host(decode_image, io.BytesIO(data), limits, name)
        return {"type": "image", "image": pixels, "detail": part.image_url.detail}
    if isinstance(part, AudioPart):
        name = f"{where}.input_audio.data"
        data = from_base64(part.input_audio.data, name)
        return {"type": "audio", "audio": await call.host(decode_audio, io.BytesIO(data), limits, name)}
    name = f"{where}.video_url.url"
    data = await call.api.fetcher.read(part.video_url.url, name)
    return {"type": "video", "video": await call.host(decode_video, io.BytesIO(data), limits, name)}
