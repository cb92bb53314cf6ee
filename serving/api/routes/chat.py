"""`/v1/chat/completions`: messages with pictures and sound in, text and sound out, whole or streamed."""

from __future__ import annotations

import asyncio
import base64
import io
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from serving.api import sse
from serving.api.errors import event as error_event
from serving.api.media.decode import decode_audio
from serving.api.media.encode import check_format, encode, to_pcm16
from serving.api.media.images import decode_image, from_base64
from serving.api.protocol.chat import AnyPart, AudioPart, Chat, ImagePart, Message, Shapes, TextPart, usage
from serving.api.run import Call, Stream
from serving.api.state import Handle, Spec, takes
from serving.core.contract import LoadedModel, Task
from serving.errors import BadRequest

KIND = "chat"
INPUTS = {"text": "text", "image_url": "image", "input_audio": "audio", "video_url": "video"}


@dataclass(slots=True)
class Answer:
    """One choice as it grows."""

    text: list[str] = field(default_factory=list)
    sound: list[np.ndarray] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)

    def take(self, port: str, value: Any) -> None:
        if port == "text":
            self.text.append(value)
        elif port == "audio":
            self.sound.append(value)
        elif port == "info":
            self.info.update(value)


async def completions(call: Call) -> Response:
    """Answer a conversation."""
    model, parsed = call.parse(**_route_knobs(call))
    route: Chat = parsed.route
    rate = _check(call, model, route)
    _check_pictures(call, route)
    messages = [await _message(call, i, message, takes(type(parsed.knobs))) for i, message in enumerate(route.messages)]
    task = Task(KIND, {"messages": messages}, parsed.knobs)
    seed = secrets.randbits(31) if route.seed is None else route.seed
    if route.stream:
        handle = await call.submit(
            model, task, route.model_copy(update={"seed": seed}), live="audio" in route.modalities
        )
        chunks = _streamed(call, handle, route, Shapes(call.exchange.request_id, model.card.key, str(seed)))
        return Stream(chunks, sse.MEDIA_TYPE, call.api.settings.timeouts.slow_client, error_event)
    async with asyncio.TaskGroup() as group:
        parts = [route.model_copy(update={"seed": seed + i}) for i in range(route.n)]
        tasks = [group.create_task(_whole(call, model, task, part, i)) for i, part in enumerate(parts)]
    call.exchange.headers["x-seed"] = str(seed)
    answers = [one.result() for one in tasks]
    choices = [await _choice(call, i, one, route, rate) for i, one in enumerate(answers)]
    tokens = usage(answers[0].info, route.n)
    return JSONResponse(Shapes(call.exchange.request_id, model.card.key, str(seed)).whole(choices, tokens))


def _route_knobs(call: Call) -> Mapping[str, Any]:
    """Knobs that the route fills from OpenAI's other names for them."""
    fields = call.body.fields
    limits = [fields[name] for name in ("max_completion_tokens", "max_tokens") if fields.get(name) is not None]
    knobs = call.knobs()
    if knobs is None:
        return {}
    if len(limits) > 1:
        raise BadRequest('Give "max_completion_tokens" or "max_tokens", not both.', param="max_tokens")
    given: dict[str, Any] = {"max_tokens": limits[0]} if limits else {}
    audio, modalities = fields.get("audio"), fields.get("modalities")
    if isinstance(audio, dict) and isinstance(audio.get("voice"), str):
        given["voice"] = audio["voice"]
    if isinstance(modalities, list) and "audio" in modalities:
        given["modalities"] = modalities
    _supported(given, knobs, str(fields["model"]))
    return given


def _supported(given: Mapping[str, Any], knobs: type[BaseModel], name: str) -> None:
    for knob in given:
        if knob not in knobs.model_fields:
            message = f'"{knob}" is not supported by model "{name}"; leave it out.'
            raise BadRequest(message, param=knob, code="unsupported_parameter")


def _check(call: Call, model: LoadedModel, route: Chat) -> int:
    """Combinations of fields that cannot be honoured; the sample rate of the model's sound (0: none asked for)."""
    limit = call.api.settings.limits.n
    if route.n > limit or (route.stream and route.n > 1):
        message = f'"n" must be at most {1 if route.stream else limit}{" in a stream" if route.stream else ""}.'
        raise BadRequest(f"{message[:-1]}, got {route.n}.", param="n")
    if "audio" not in route.modalities:
        return 0
    if route.audio is None:
        raise BadRequest('"modalities" with "audio" needs "audio": {"voice", "format"}.', param="audio")
    if route.stream and route.audio.format != "pcm16":
        raise BadRequest('A stream carries "pcm16" audio only.', param="audio.format", code="unsupported_format")
    rate = model.card.sample_rate or 0
    if route.audio.format != "pcm16":
        check_format(route.audio.format, rate, "audio.format")
    return rate


def _check_pictures(call: Call, route: Chat) -> None:
    """Bound the pictures of a whole conversation before the first is fetched or decoded."""
    parts = [part for message in route.messages if isinstance(message.content, tuple) for part in message.content]
    count, limit = sum(isinstance(part, ImagePart) for part in parts), call.api.settings.limits.images
    if count > limit:
        raise BadRequest(f'"messages" may hold at most {limit} pictures, got {count}.', param="messages")


async def _message(call: Call, index: int, message: Message, able: frozenset[str]) -> dict[str, Any]:
    """A message with its media decoded: pictures as uint8 [H, W, 3], sound as `Audio`."""
    content = message.content
    shown = message.model_dump(exclude={"content"}, exclude_defaults=True)
    if isinstance(content, tuple):
        where = f"messages.{index}.content"
        for i, part in enumerate(content):
            _require(part, able, call.exchange.model, f"{where}.{i}")
        parts = [await _part(call, part, f"{where}.{i}") for i, part in enumerate(content)]
        return {"role": message.role, **shown, "content": parts}
    return {"role": message.role, **shown, "content": content}


def _require(part: AnyPart, able: frozenset[str], model: str, where: str) -> None:
    name = INPUTS[part.type]
    if name not in able:
        message = f'Model "{model}" takes no {name} in messages.'
        raise BadRequest(message, param=where, code="unsupported_parameter")


async def _part(call: Call, part: AnyPart, where: str) -> dict[str, Any]:
    limits = call.api.settings.limits
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        data = await call.api.fetcher.read(part.image_url.url, f"{where}.image_url.url")
        pixels = await call.host(decode_image, io.BytesIO(data), limits, f"{where}.image_url.url")
        return {"type": "image", "image": pixels, "detail": part.image_url.detail}
    if isinstance(part, AudioPart):
        name = f"{where}.input_audio.data"
        data = from_base64(part.input_audio.data, name)
        return {"type": "audio", "audio": await call.host(decode_audio, io.BytesIO(data), limits, name)}
    raise BadRequest("Films in messages are not supported yet.", param=where, code="unsupported_parameter")


async def _whole(call: Call, model: LoadedModel, task: Task, route: Chat, index: int) -> Answer:
    answer = Answer()
    handle = await call.submit(model, task, route, part=index)
    async for output in call.outputs(handle):
        answer.take(output.port, output.value)
    return answer


async def _choice(call: Call, index: int, answer: Answer, route: Chat, rate: int) -> dict[str, Any]:
    text = "".join(answer.text)
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if route.audio and answer.sound:
        samples = np.concatenate(answer.sound)
        fmt = "pcm" if route.audio.format == "pcm16" else route.audio.format
        data = await call.host(encode, fmt, rate, samples)
        message |= {"content": None, "audio": _audio(call, data) | {"transcript": text}}
    finish = answer.info.get("finish_reason", "stop")
    return {"index": index, "message": message, "finish_reason": finish, "logprobs": answer.info.get("logprobs")}


def _audio(call: Call, data: bytes) -> dict[str, Any]:
    """OpenAI's audio object; it expires at once, as nothing is kept."""
    identifier = call.exchange.request_id.replace("req_", "audio_", 1)
    return {"id": identifier, "data": base64.b64encode(data).decode(), "expires_at": int(time.time())}


async def _streamed(call: Call, handle: Handle, route: Chat, shapes: Shapes) -> AsyncGenerator[bytes]:
    answer = Answer()
    started = False
    async with aclosing(call.outputs(handle)) as outputs:
        async for output in outputs:
            if not started:
                started = True
                yield sse.event(shapes.chunk({"role": "assistant", "content": ""}))
            if output.port == "info":
                answer.info.update(output.value)
            elif output.port == "text" and output.value:
                yield sse.event(shapes.chunk({"content": output.value}))
            elif output.port == "audio" and len(output.value):
                yield sse.event(shapes.chunk({"audio": _audio(call, to_pcm16(output.value))}))
    yield sse.event(shapes.chunk({}, answer.info.get("finish_reason", "stop")))
    if route.stream_options.include_usage:
        yield sse.event(shapes.tokens(usage(answer.info)))
    yield sse.DONE


ROUTES = (Spec("/v1/chat/completions", completions, "POST", KIND, Chat, ("json",), summary="Answer a conversation"),)
