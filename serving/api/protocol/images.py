"""`/v1/images/generations`, `/v1/images/edits`, `/v1/videos/generations`: request fields and answers."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from serving.api.fields import Own, Seeded
from serving.errors import BadRequest
from serving.settings import Limits

SIZE = re.compile(r"(\d{1,6})x(\d{1,6})")


def is_size(text: str) -> str:
    if text != "auto" and not SIZE.fullmatch(text):
        raise ValueError('must be "WIDTHxHEIGHT", such as "512x512", or "auto".')
    return text


class Pictured(Seeded):
    """What the three routes share. Picture i of `n` is made with seed + i."""

    prompt: Annotated[str, Field(min_length=1)]
    n: Annotated[int, Field(ge=1)] = 1
    size: Annotated[str, AfterValidator(is_size)] = "auto"
    response_format: Literal["b64_json"] = "b64_json"
    user: Annotated[str | None, Own.IGNORED] = None


class Images(Pictured):
    """Fields of OpenAI's image generation request."""

    output_format: Literal["png", "jpeg", "webp"] = "png"
    output_compression: Annotated[int, Field(ge=0, le=100)] = 100
    quality: Annotated[str, Own.HINT] = "auto"
    moderation: Annotated[str, Own.IGNORED] = "auto"
    safety_identifier: Annotated[str | None, Own.IGNORED] = None
    background: Annotated[str, Own.MODEL] = "auto"
    style: Annotated[str | None, Own.MODEL] = None
    complexity: Annotated[str | None, Own.HINT] = None
    frame_count: Annotated[int | None, Own.REFUSED] = None
    frame_duration_ms: Annotated[int | None, Own.REFUSED] = None
    svg: Annotated[dict[str, Any] | None, Own.REFUSED] = None
    stream: Annotated[bool, Own.REFUSED] = False
    partial_images: Annotated[int, Own.REFUSED] = 0


class Edits(Images):
    """Fields of OpenAI's image edit form, the files aside."""

    input_fidelity: Annotated[str | None, Own.HINT] = None


class Videos(Pictured):
    """Fields of a video request; the model's knobs say how long and how fast."""

    image: str | None = None  # a data URL, in JSON; a file in a form
    output_format: Literal["mp4", "webp", "gif"] = "mp4"


def size_knobs(size: str, knobs: type[BaseModel], limits: Limits) -> Mapping[str, Any]:
    """`size` as the model's own knobs: `size`, or `width` and `height`; within the pixel budget."""
    if size == "auto" or not (match := SIZE.fullmatch(size)):
        return {}
    width, height = int(match[1]), int(match[2])
    if width * height > limits.image_pixels:
        rule = f'"size" {size} is {width * height} pixels; at most {limits.image_pixels} are made.'
        raise BadRequest(rule, param="size")
    if "size" in knobs.model_fields:
        return {"size": size}
    if {"width", "height"} <= set(knobs.model_fields):
        return {"width": width, "height": height}
    raise BadRequest('"size" is not supported by this model; leave it out.', param="size", code="unsupported_parameter")


def answer(files: Sequence[bytes], fmt: str, info: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAI's images response."""
    given, made = int(info.get("input_tokens", 0)), int(info.get("output_tokens", 0))
    details = {"text_tokens": given, "image_tokens": 0}
    return {
        "created": int(time.time()),
        "output_format": fmt,
        "data": [{"b64_json": base64.b64encode(data).decode()} for data in files],
        "usage": {
            "input_tokens": given,
            "output_tokens": made,
            "total_tokens": given + made,
            "input_tokens_details": details,
        },
    }
