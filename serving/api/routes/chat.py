"""`/v1/chat/completions`: messages with media in; text, thoughts, tool calls and sound out, whole or streamed."""

from __future__ import annotations

import base64
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
from serving.api.conversation import decoded
from serving.api.errors import event as error_event
from serving.api.media.encode import check_format, encode, to_pcm16
from serving.api.merge import merged
from serving.api.protocol.chat import Chat, Shapes, logprobs, tool_call, usage
from serving.api.run import Call, Stream
from serving.api.state import Handle, Output, Spec, takes
from serving.core.contract import Delta, LoadedModel, Task, TokenLogprob, ToolCall
from serving.errors import BadRequest

KIND = "chat"


@dataclass(slots=True)
class Answer:
    """One choice as it grows."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    sound: list[np.ndarray] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)

    def take(self, output: Output) -> None:
        if output.port == "audio":
            self.sound.append(output.value)
        elif output.port == "info":
            self.info.update(output.value)
        elif output.port == "text":
            delta: Delta = output.value
            self.text.append(delta.text)
            self.reasoning.append(delta.reasoning)
            self.calls += delta.tool_calls
            self.logprobs += delta.logprobs
            self.token_ids += delta.token_ids

    @property
    def finish_reason(self) -> str:
        return str(self.info.get("finish_reason", "stop"))


async def completions(call: Call) -> Response:
    """Answer a conversation."""
    model, parsed = call.parse(**_route_knobs(call))
    route: Chat = parsed.route
    rate = _check(call, model, route)
    messages = await decoded(call, route.messages, takes(type(parsed.knobs)))
    handles, seed = await _submitted(call, model, Task(KIND, {"messages": messages}, parsed.knobs), route)
    counted = route.stream_options.include_usage
    shapes = Shapes(call.exchange.request_id, model.card.key, seed, counted=counted)
    if route.stream:
        chunks = _streamed(call, handles, route, shapes)
        return Stream(chunks, sse.MEDIA_TYPE, call.api.settings.timeouts.slow_client, error_event)
    answers = [Answer() for _ in handles]
    async with aclosing(merged([call.outputs(handle) for handle in handles])) as outputs:
        async for i, output in outputs:
            if output is not None:
                answers[i].take(output)
    choices = [await _choice(call, i, one, route, rate) for i, one in enumerate(answers)]
    infos = [answer.info for answer in answers]
    return JSONResponse(shapes.whole(choices, _counted(call, infos), **_prompt_ids(infos[0])))


async def _submitted(call: Call, model: LoadedModel, task: Task, route: Chat) -> tuple[list[Handle], int]:
    """A request for each choice, with seeds that follow each other from the first; all of them or none."""
    seed = secrets.randbits(31) if route.seed is None else route.seed
    handles: list[Handle] = []
    try:
        for i in range(route.n):
            part = route.model_copy(update={"seed": seed + i})
            name = i if route.n > 1 else None
            handles.append(await call.submit(model, task, part, live="audio" in route.modalities, part=name))
    except BaseException:
        for handle in handles:
            handle.cancel()
        raise
    return handles, seed


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
    if route.n > limit:
        raise BadRequest(f'"n" must be at most {limit}, got {route.n}.', param="n")
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


async def _choice(call: Call, index: int, answer: Answer, route: Chat, rate: int) -> dict[str, Any]:
    text, thought = "".join(answer.text), "".join(answer.reasoning)
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if thought:
        message["reasoning_content"] = thought
    if answer.calls:
        message |= {"content": text or None, "tool_calls": [tool_call(one) for one in answer.calls]}
    if route.audio and answer.sound:
        samples = np.concatenate(answer.sound)
        fmt = "pcm" if route.audio.format == "pcm16" else route.audio.format
        data = await call.host(encode, fmt, rate, samples)
        message |= {"content": None, "audio": _audio(call, data) | {"transcript": text}}
    shown = logprobs(answer.logprobs) if route.logprobs else None
    choice = {"index": index, "message": message, "finish_reason": answer.finish_reason, "logprobs": shown}
    return choice | ({"token_ids": answer.token_ids} if answer.token_ids else {})


def _audio(call: Call, data: bytes) -> dict[str, Any]:
    """OpenAI's audio object; it expires at once, as nothing is kept."""
    identifier = call.exchange.request_id.replace("req_", "audio_", 1)
    return {"id": identifier, "data": base64.b64encode(data).decode(), "expires_at": int(time.time())}


def _prompt_ids(info: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt_token_ids": info["prompt_token_ids"]} if "prompt_token_ids" in info else {}


def _counted(call: Call, infos: list[dict[str, Any]]) -> dict[str, Any]:
    """The usage of all choices, once they have ended."""
    tokens = usage(infos)
    call.api.metrics.tokens.labels(call.exchange.route, call.exchange.model).inc(tokens["completion_tokens"])
    return tokens


async def _streamed(call: Call, handles: list[Handle], route: Chat, shapes: Shapes) -> AsyncGenerator[bytes]:
    """Each choice: its role, what it grows by, its reason to end. Then the usage of all."""
    made = [0] * len(handles)  # tool calls
    started = [False] * len(handles)
    infos: list[dict[str, Any]] = [{} for _ in handles]
    async with aclosing(merged([call.outputs(handle) for handle in handles])) as outputs:
        async for i, output in outputs:
            if not started[i]:
                started[i] = True
                yield sse.event(shapes.chunk(i, {"role": "assistant", "content": ""}))
            if output is None:
                yield sse.event(shapes.chunk(i, {}, str(infos[i].get("finish_reason", "stop"))))
            elif output.port == "info":
                infos[i].update(output.value)
            elif output.port == "audio" and len(output.value):
                yield sse.event(shapes.chunk(i, {"audio": _audio(call, to_pcm16(output.value))}))
            elif output.port == "text" and (shown := _grown(output.value, route, made[i])):
                made[i] += len(output.value.tool_calls)
                yield sse.event(shapes.chunk(i, **shown))
    tokens = _counted(call, infos)
    if route.stream_options.include_usage:
        yield sse.event({**shapes.tokens(tokens), **_prompt_ids(infos[0])})
    yield sse.DONE


def _grown(delta: Delta, route: Chat, made: int) -> dict[str, Any]:
    """A delta as fields of a chunk's choice; {} for none. `made`: tool calls before it."""
    shown: dict[str, Any] = {}
    if delta.reasoning:
        shown["reasoning_content"] = delta.reasoning
    if delta.text:
        shown["content"] = delta.text
    if delta.tool_calls:
        shown["tool_calls"] = [{"index": made + i, **tool_call(one)} for i, one in enumerate(delta.tool_calls)]
    more: dict[str, Any] = {"token_ids": list(delta.token_ids)} if delta.token_ids else {}
    if route.logprobs and delta.logprobs:
        more["logprobs"] = logprobs(delta.logprobs)
    return {"delta": shown, **more} if shown or more else {}


ROUTES = (Spec("/v1/chat/completions", completions, "POST", KIND, Chat, ("json",), summary="Answer a conversation"),)
