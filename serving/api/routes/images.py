"""Pictures from a prompt, from pictures and a prompt, and films: the routes of `image` and `video` models."""

from __future__ import annotations

import asyncio
import io
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel
from starlette.responses import JSONResponse, Response

from serving.api.media.images import (
    check_video,
    decode_image,
    encode_image,
    encode_video,
)
from serving.api.protocol.images import Edits, Images, Pictured, Videos, answer, size_knobs
from serving.api.run import Call
from serving.api.state import Spec, takes
from serving.core.contract import LoadedModel, Task
from serving.errors import BadRequest, ToolkitError

DEFAULT_FPS = 16.0
Made = tuple[list[np.ndarray], dict[str, Any]]  # what one request made, and its facts


async def generations(call: Call) -> Response:
    """Pictures for a prompt."""
    return await _images(call)


async def edits(call: Call) -> Response:
    """Pictures made from pictures."""
    return await _images(call)


async def videos(call: Call) -> Response:
    """Films for a prompt, with or without a first picture."""
    model, parsed = call.parse(**_size(call))
    route: Videos = parsed.route
    asked = float(getattr(parsed.knobs, "fps", DEFAULT_FPS))
    check_video(route.output_format, asked)
    results = await _made(call, model, route, parsed.knobs)
    files = []
    for arrays, info in results:
        frames = np.concatenate(arrays)
        fps = float(info.get("fps", asked))
        files.append(await call.host(encode_video, frames, fps, route.output_format))
    return JSONResponse(answer(files, route.output_format, results[0][1]))


async def _images(call: Call) -> Response:
    model, parsed = call.parse(**_size(call))
    route: Images = parsed.route
    results = await _made(call, model, route, parsed.knobs)
    pictures = [array for arrays, _ in results for array in arrays]
    fmt, quality = route.output_format, route.output_compression
    files = [await call.host(encode_image, pixels, fmt, quality) for pixels in pictures]
    return JSONResponse(answer(files, fmt, results[0][1]))


async def _made(call: Call, model: LoadedModel, route: Pictured, knobs: Any) -> list[Made]:
    """`n` requests at once, seeds counting up; each gives what its port made, and its facts."""
    limits, kind = call.api.settings.limits, str(call.spec.kind)
    if route.n > limits.n:
        raise BadRequest(f'"n" must be at most {limits.n}, got {route.n}.', param="n")
    if len(route.prompt) > limits.text_chars:
        raise BadRequest(f'"prompt" must have at most {limits.text_chars} characters.', param="prompt")
    inputs = {"text": route.prompt, **await _pictures(call, type(knobs))}
    seed = secrets.randbits(31) if route.seed is None else route.seed
    call.exchange.headers["x-seed"] = str(seed)

    async def one(index: int) -> Made:
        task = Task(kind, inputs, knobs)
        part = route.model_copy(update={"seed": seed + index})
        handle = await call.submit(model, task, part, part=index)
        arrays, info = [], {}
        async for output in call.outputs(handle):
            if output.port == kind:
                arrays.append(output.value)
            elif output.port == "info":
                info.update(output.value)
        if not arrays:
            raise ToolkitError(f"The model made no {kind} for this input.", code="no_output")
        return arrays, info

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(index)) for index in range(route.n)]
    return [task.result() for task in tasks]


def _size(call: Call) -> Mapping[str, Any]:
    """The knobs that `size` stands for, where model and size are sound; otherwise `parse` says what is not."""
    knobs, size = call.knobs(), call.body.fields.get("size")
    return size_knobs(size, knobs, call.api.settings.limits) if knobs and isinstance(size, str) else {}


async def _pictures(call: Call, knobs: type[BaseModel]) -> dict[str, Any]:
    """The pictures that came with a request: files of a form, or a data URL in JSON."""
    limits, files, url = call.api.settings.limits, call.body.files, call.body.fields.get("image")
    sources: list[Any] = [upload.file for upload in files.get("image", ())]
    sources += [io.BytesIO(await call.api.fetcher.read(url, "image"))] if isinstance(url, str) else []
    if sources and "images" not in takes(knobs):
        message = f'Model "{call.exchange.model}" takes no pictures; leave "image" out.'
        raise BadRequest(message, param="image", code="unsupported_parameter")
    if "mask" in files and "mask" not in takes(knobs):
        raise BadRequest(f'Model "{call.exchange.model}" takes no mask.', param="mask", code="unsupported_parameter")
    inputs: dict[str, Any] = {}
    if sources:
        inputs["images"] = [await call.host(decode_image, source, limits, "image") for source in sources]
    if "mask" in files:
        inputs["mask"] = await call.host(decode_image, call.body.file("mask").file, limits, "mask", "L")
    return inputs


def edits_pictures(knobs: type[BaseModel]) -> bool:
    return "images" in takes(knobs)


ROUTES = (
    Spec("/v1/images/generations", generations, "POST", "image", Images, ("json",), summary="Pictures for a prompt"),
    Spec(
        "/v1/images/edits",
        edits,
        "POST",
        "image",
        Edits,
        ("form",),
        {"image": True, "mask": False},
        "Pictures made from pictures",
        edits_pictures,
    ),
    Spec(
        "/v1/videos/generations",
        videos,
        "POST",
        "video",
        Videos,
        ("json", "form"),
        {"image": False},
        "Films for a prompt",
    ),
)
