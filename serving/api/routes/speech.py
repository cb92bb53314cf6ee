"""Text to speech: `/v1/audio/speech`, whole, as a stream of audio, or as events."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from starlette.responses import Response

from serving.api import sse
from serving.api.errors import event as error_event
from serving.api.media.decode import decode_audio
from serving.api.media.encode import MEDIA_TYPES, check_format, encode, encoder
from serving.api.media.images import from_base64
from serving.api.playing import Playing
from serving.api.protocol.speech import DEFAULT_VOICE, Speech, delta, done
from serving.api.run import Call, Stream
from serving.api.state import Handle, Spec, takes
from serving.core.contract import Audio, Task
from serving.errors import BadRequest, TooLarge, ToolkitError

KIND = "speak"


@dataclass(slots=True)
class Said:
    """A submitted request for speech and what its answer needs."""

    call: Call
    handle: Handle
    route: Speech
    rate: int
    info: dict[str, Any] = field(default_factory=dict)

    async def sound(self) -> AsyncGenerator[np.ndarray]:
        """Chunks of float32 [T] that hold something. Raises when the model made no sound at all."""
        empty = True
        async with aclosing(self.call.outputs(self.handle)) as outputs:
            async for output in outputs:
                if output.port == "audio" and len(output.value):
                    empty = False
                    yield output.value
                elif output.port == "info":
                    self.info.update(output.value)
        if empty:
            raise ToolkitError("The model made no sound for this input.", code="no_output")

    async def encoded(self) -> AsyncGenerator[bytes]:
        """A live file, as its sound is made."""
        exchange = self.call.exchange
        playing = Playing(self.call.api.metrics, (exchange.route, exchange.model), exchange.arrived)
        made = encoder(self.route.response_format, self.rate, live=True)
        try:
            async with aclosing(self.sound()) as chunks:
                async for samples in chunks:
                    data = await self.call.host(made.push, samples)
                    playing.chunk(len(samples) / self.rate)
                    if data:
                        yield data
            if data := await self.call.host(made.close):
                yield data
        finally:
            made.discard()

    async def events(self) -> AsyncGenerator[bytes]:
        async with aclosing(self.encoded()) as parts:
            async for data in parts:
                yield sse.event(delta(data))
        yield sse.event(done(self.info))


async def speech(call: Call) -> Response:
    """Say a text."""
    said = await _submit(call)
    timeout = call.api.settings.timeouts.slow_client
    if said.route.stream_format == "sse":
        return Stream(said.events(), sse.MEDIA_TYPE, timeout, error_event)
    media_type = media_type_of(said.route.response_format, said.rate)
    if said.route.stream:
        return Stream(said.encoded(), media_type, timeout)
    samples = np.concatenate([chunk async for chunk in said.sound()])
    exchange = call.exchange
    call.api.metrics.audio_out.labels(exchange.route, exchange.model).inc(len(samples) / said.rate)
    return Response(await call.host(encode, said.route.response_format, said.rate, samples), media_type=media_type)


async def _submit(call: Call) -> Said:
    """Validate, and hand the text to the engine. Nothing is made in a format that cannot be sent."""
    voice = _voice_knob(call)
    model, parsed = call.parse(**voice)
    route: Speech = parsed.route
    limit = call.api.settings.limits.text_chars
    if len(route.input) > limit:
        message = f'"input" must have at most {limit} characters, got {len(route.input)}.'
        raise BadRequest(message, param="input")
    rate = model.card.sample_rate
    assert rate is not None, f"{model.card.key} speaks but its card has no sample rate"
    check_format(route.response_format, rate)
    inputs: dict[str, Any] = {"text": route.input}
    clip = getattr(parsed.knobs, "ref_audio", None)
    if clip is not None:
        inputs["voice"] = await _reference(call, clip, route)
    elif "voice" in takes(type(parsed.knobs)) and call.api.voices.has(route.voice_name):
        inputs["voice"], inputs["voice_text"] = await call.host(call.api.voices.clip, route.voice_name)
    live = route.stream or route.stream_format == "sse"
    handle = await call.submit(model, Task(KIND, inputs, parsed.knobs), route, live=live)
    return Said(call, handle, route, rate)


async def _reference(call: Call, clip: str, route: Speech) -> Audio:
    """The clip of the model's `ref_audio`: base64, a data URL, or a URL where the settings allow one."""
    if route.voice_name != DEFAULT_VOICE:
        raise BadRequest('Send "ref_audio" or a "voice", not both.', param="ref_audio")
    data = await call.api.fetcher.read(clip, "ref_audio") if ":" in clip else from_base64(clip, "ref_audio")
    limit = call.api.settings.limits.voice_bytes
    if len(data) > limit:
        raise TooLarge(f'"ref_audio" is larger than the limit of {limit} bytes.', param="ref_audio")
    return await call.host(decode_audio, io.BytesIO(data), call.api.settings.limits, "ref_audio")


def _voice_knob(call: Call) -> dict[str, Any]:
    """The model's `voice`, from either of OpenAI's ways to name one; a model without voices takes any name."""
    knobs = call.knobs()
    given = call.body.fields.get("voice")
    name = given.get("id") if isinstance(given, dict) else given
    if knobs is None or not isinstance(name, str) or name in {"", DEFAULT_VOICE}:
        return {}
    if "voice" in takes(knobs) and call.api.voices.has(name):
        return {}
    if "voice" not in knobs.model_fields:
        call.ignore("voice")
        return {}
    return {"voice": name}


def media_type_of(fmt: str, rate: int) -> str:
    """The content type; raw samples say their rate in it, as nothing else does."""
    return f"audio/pcm;rate={rate};channels=1;bits=16" if fmt == "pcm" else MEDIA_TYPES[fmt]


ROUTES = (Spec("/v1/audio/speech", speech, "POST", KIND, Speech, ("json",), summary="Say a text"),)
