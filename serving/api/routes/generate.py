"""`/generate`: one request to any model in its own terms; outputs by port, whole or as NDJSON."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import JSONResponse, Response

from serving.api.media.decode import decode_audio
from serving.api.media.images import decode_image
from serving.api.protocol.generate import Generate, to_json
from serving.api.run import Call, Stream
from serving.api.state import Handle, Spec, takes
from serving.core.contract import LoadedModel, Task
from serving.errors import BadRequest, ToolkitError

KIND = "generate"
NDJSON = "application/x-ndjson"


async def generate(call: Call) -> Response:
    """Run a model."""
    handle, route = await submitted(call)
    if route.stream:
        return Stream(_lines(call, handle), NDJSON, call.api.settings.timeouts.slow_client, error_line)
    outputs: dict[str, list[Any]] = {}
    info: dict[str, Any] = {}
    async for output in call.outputs(handle):
        if output.port == "info":
            info.update(output.value)
        else:
            outputs.setdefault(output.port, []).append(to_json(output.value))
    body = {"id": call.exchange.request_id, "model": call.exchange.model, "outputs": outputs, "info": to_json(info)}
    return JSONResponse(body)


async def submitted(call: Call, *, live: bool = False, part: int | None = None) -> tuple[Handle, Generate]:
    """Validate the fields, decode the media, hand the task to the engine."""
    model, parsed = call.parse()
    route: Generate = parsed.route
    inputs = await _inputs(call, model, route)
    handle = await call.submit(
        model, Task(KIND, inputs, parsed.knobs), route, session=route.session, live=live, part=part
    )
    return handle, route


async def _inputs(call: Call, model: LoadedModel, route: Generate) -> dict[str, Any]:
    """Text, sound and pictures by name, each only where the model takes it."""
    limits, files = call.api.settings.limits, call.body.files
    able = takes(call.knobs() or Generate) | {"text"}
    inputs: dict[str, Any] = {}
    if route.text is not None:
        if len(route.text) > limits.text_chars:
            raise BadRequest(f'"text" must have at most {limits.text_chars} characters.', param="text")
        inputs["text"] = route.text
    for name, url in (("audio", route.audio), ("image", route.image)):
        sources: list[Any] = [upload.file for upload in files.get(name, ())]
        sources += [io.BytesIO(await call.api.fetcher.read(url, name))] if url else []
        key = "images" if name == "image" else name
        if sources and key not in able:
            message = f'Model "{model.card.key}" takes no {name}; leave it out.'
            raise BadRequest(message, param=name, code="unsupported_parameter")
        if sources and name == "image":
            inputs[key] = [await call.host(decode_image, source, limits, name) for source in sources]
        elif len(sources) > 1:
            raise BadRequest(f'Send one "{name}", not {len(sources)}.', param=name)
        elif sources:
            inputs[key] = await call.host(decode_audio, sources[0], limits, name)
    return inputs


async def _lines(call: Call, handle: Handle) -> AsyncGenerator[bytes]:
    async with aclosing(call.outputs(handle)) as outputs:
        async for output in outputs:
            yield line({"type": "output", "port": output.port, "data": to_json(output.value)})
    yield line({"type": "done"})


def line(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode() + b"\n"


def error_line(error: ToolkitError) -> bytes:
    return line({"type": "error", **error.body()})


ROUTES = (
    Spec(
        "/generate",
        generate,
        "POST",
        KIND,
        Generate,
        ("json", "form"),
        {"audio": False, "image": False},
        "Any model in its own terms",
    ),
)
