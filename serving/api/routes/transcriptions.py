"""Speech to text: `/v1/audio/transcriptions` and `/v1/audio/translations`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel
from starlette.responses import JSONResponse, PlainTextResponse, Response

from serving.api import sse
from serving.api.errors import event as error_event
from serving.api.media.decode import decode_audio
from serving.api.protocol.transcription import (
    Deltas,
    Transcription,
    Translation,
    srt,
    usage,
    verbose,
    vtt,
    whole_text,
)
from serving.api.run import Call, Stream
from serving.api.state import Handle, Spec
from serving.core.contract import Audio, Segment, Task
from serving.errors import BadRequest

KIND = "transcribe"
STREAMED = {"json", "text"}


async def transcriptions(call: Call) -> Response:
    """Transcribe a file, whole or as a stream of deltas."""
    return await _answer(call, "transcribe")


async def translations(call: Call) -> Response:
    """Transcribe a file into English."""
    return await _answer(call, "translate", task="translate")


async def _answer(call: Call, done: str, **knobs: str) -> Response:
    model, parsed = call.parse(**knobs)
    route = parsed.route
    _check_format(call, route)
    audio = await call.host(decode_audio, call.body.file("file").file, call.api.settings.limits)
    call.api.metrics.audio_in.labels(call.exchange.route, model.card.key).inc(audio.seconds)
    handle = await call.submit(model, Task(KIND, {"audio": audio}, parsed.knobs), route)
    if getattr(route, "stream", False):
        chunks = _deltas(call, handle, audio.seconds)
        return Stream(chunks, sse.MEDIA_TYPE, call.api.settings.timeouts.slow_client, error_event)
    return await _whole(call, handle, audio, route, done)


def _check_format(call: Call, route: Any) -> None:
    """The combinations of fields that OpenAI refuses."""
    if call.body.fields.get("timestamp_granularities") and route.response_format != "verbose_json":
        message = '"timestamp_granularities" needs response_format "verbose_json".'
        raise BadRequest(message, param="timestamp_granularities")
    if getattr(route, "stream", False) and route.response_format not in STREAMED:
        message = f'A stream cannot be "{route.response_format}". Formats that stream: json, text.'
        raise BadRequest(message, param="response_format", code="unsupported_format")


async def _whole(call: Call, handle: Handle, audio: Audio, route: Any, task: str) -> Response:
    segments: list[Segment] = []
    info: dict[str, Any] = {}
    async for output in call.outputs(handle):
        if output.port == "segments":
            segments.extend(output.value)
        elif output.port == "info":
            info.update(output.value)
            _count(call, output.value)
    return _written(segments, info, audio.seconds, route, task)


def _count(call: Call, info: Mapping[str, Any]) -> None:
    call.api.metrics.full_windows.labels(call.exchange.route, call.exchange.model).inc(info.get("full_windows", 0))


def _written(segments: Sequence[Segment], info: Mapping[str, Any], seconds: float, route: Any, task: str) -> Response:
    match route.response_format:
        case "text":
            return PlainTextResponse(whole_text(segments) + "\n")
        case "srt":
            return PlainTextResponse(srt(segments), media_type="application/x-subrip")
        case "vtt":
            return PlainTextResponse(vtt(segments), media_type="text/vtt")
        case "verbose_json":
            granularities = getattr(route, "timestamp_granularities", ("segment",))
            return JSONResponse(verbose(segments, info, seconds, granularities, task))
    return JSONResponse({"text": whole_text(segments), "usage": usage(seconds)})


async def _deltas(call: Call, handle: Handle, seconds: float) -> AsyncGenerator[bytes]:
    deltas = Deltas()
    async with aclosing(call.outputs(handle)) as outputs:
        async for output in outputs:
            if output.port == "info":
                _count(call, output.value)
            for segment in output.value if output.port == "segments" else ():
                if delta := deltas.push(segment.text):
                    yield sse.event({"type": "transcript.text.delta", "delta": delta})
    yield sse.event({"type": "transcript.text.done", "text": deltas.sent, "usage": usage(seconds)})
    yield sse.DONE


def translates(knobs: type[BaseModel]) -> bool:
    return "task" in knobs.model_fields


ROUTES = (
    Spec(
        "/v1/audio/transcriptions",
        transcriptions,
        "POST",
        KIND,
        Transcription,
        ("form",),
        {"file": True},
        "Transcribe speech in its own language",
    ),
    Spec(
        "/v1/audio/translations",
        translations,
        "POST",
        KIND,
        Translation,
        ("form",),
        {"file": True},
        "Transcribe speech into English",
        translates,
    ),
)
