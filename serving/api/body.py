"""Reading a request's body into named values and files; whatever cannot be read is a 4xx."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json
from starlette.datastructures import UploadFile
from starlette.requests import Request

from serving.api.errors import UnsupportedContent
from serving.api.state import Spec
from serving.errors import BadRequest
from serving.settings import Limits
from serving.strict import unknown

MIME = {"json": "application/json", "form": "multipart/form-data"}


@dataclass(frozen=True, slots=True)
class Body:
    """A body's fields and files by name. `text`: values are strings, as a form sends them."""

    fields: dict[str, Any]
    files: dict[str, list[UploadFile]] = field(default_factory=dict)
    text: bool = False

    def file(self, name: str) -> UploadFile:
        """The one file of this name; several are an error."""
        if len(self.files[name]) > 1:
            raise BadRequest(f'Send one "{name}", not {len(self.files[name])}.', param=name)
        return self.files[name][0]


@asynccontextmanager
async def read_body(request: Request, spec: Spec, limits: Limits) -> AsyncIterator[Body]:
    """The request's body; its temporary files are closed on leaving."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if "json" in spec.encodings and kind == MIME["json"]:
        yield Body(_read_json(await request.body()))
    elif "form" in spec.encodings and kind == MIME["form"]:
        async with request.form(
            max_files=limits.images, max_fields=limits.form_fields, max_part_size=limits.field_bytes
        ) as form:
            yield _sort(form.multi_items(), spec)
    else:
        wanted = " or ".join(MIME[encoding] for encoding in spec.encodings)
        raise UnsupportedContent(f"{spec.path} reads {wanted}, not {kind or 'a body without a content type'}.")


def _read_json(data: bytes) -> dict[str, Any]:
    try:
        value = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"The body is not JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequest(f"The body must be a JSON object, not {type(value).__name__}.", code="invalid_json")
    return value


def _sort(items: list[tuple[str, Any]], spec: Spec) -> Body:
    """Fields and files of a form; "name[]" is "name", and a name that comes twice becomes a list."""
    fields: dict[str, Any] = {}
    files: dict[str, list[UploadFile]] = {}
    for key, value in items:
        name = key.removesuffix("[]")
        if isinstance(value, UploadFile) != (name in spec.files):
            raise _misplaced(name, value, spec)
        if isinstance(value, UploadFile):
            files.setdefault(name, []).append(value)
        elif name in fields:
            held = fields[name]
            fields[name] = [*(held if isinstance(held, list) else [held]), value]
        else:
            fields[name] = value
    for name, required in spec.files.items():
        if required and name not in files:
            raise BadRequest(f'You must provide "{name}" as a file.', param=name, code="missing_required_parameter")
    return Body(fields, files, text=True)


def _misplaced(name: str, value: Any, spec: Spec) -> BadRequest:
    if name in spec.files:
        return BadRequest(f'"{name}" must be a file, not text.', param=name, code="invalid_type")
    if spec.schema and name in spec.schema.model_fields:
        return BadRequest(f'"{name}" must be text, not a file.', param=name, code="invalid_type")
    return unknown(name, {*spec.files, *(spec.schema.model_fields if spec.schema else ())})
