"""The OpenAPI page, assembled from the route table and the loaded models' knobs: `oneOf` by model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from serving.api.fields import Own, owner
from serving.api.state import Api, Spec, knobs_of
from serving.core.contract import LoadedModel

MIME = {"json": "application/json", "form": "multipart/form-data"}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def document(app: FastAPI, api: Api) -> dict[str, Any]:
    """The whole page; made once."""
    if app.openapi_schema is None:
        page = get_openapi(title=app.title, version=app.version, routes=app.routes)
        components = page.setdefault("components", {}).setdefault("schemas", {})
        components["Error"] = ERROR
        for spec in api.specs:
            if spec.method != "WS" and spec.path in page["paths"]:
                _fill(page["paths"][spec.path][spec.method.lower()], spec, api, components)
        app.openapi_schema = page
    return app.openapi_schema


def _schema(model: type[BaseModel], name: str, components: dict[str, Any]) -> dict[str, Any]:
    """A pydantic model's schema; what it nests becomes components named after `name`."""
    made = model.model_json_schema(ref_template=f"#/components/schemas/{name}.{{model}}")
    components |= {f"{name}.{nested}": schema for nested, schema in made.pop("$defs", {}).items()}
    return made


def _fill(operation: dict[str, Any], spec: Spec, api: Api, components: dict[str, Any]) -> None:
    refusal = {
        "description": "Refused",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    names = re.findall(r"{(\w+)}", spec.path)
    text = {"type": "string", "minLength": 1}
    operation["parameters"] = [{"name": name, "in": "path", "required": True, "schema": text} for name in names]
    operation["responses"] = {"200": {"description": "Done"}, "default": refusal}
    if not spec.encodings:
        return
    if spec.kind is None:
        operation["requestBody"] = _content(spec, _plain_schema(spec, components))
        return
    able = [model for model in api.models.values() if api.serves(model.card, spec)]
    schema: dict[str, Any] = (
        {"oneOf": [request_schema(spec, model, components) for model in able]} if able else {"type": "object"}
    )
    operation["requestBody"] = _content(spec, schema)


def _content(spec: Spec, schema: dict[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {MIME[encoding]: {"schema": schema} for encoding in spec.encodings}}


def _plain_schema(spec: Spec, components: dict[str, Any]) -> dict[str, Any]:
    """A body that no model has a part in."""
    made: dict[str, Any] = {"type": "object", "properties": {}}
    if spec.schema:
        made = _schema(spec.schema, spec.schema.__name__, components)
    made["properties"] |= {name: {"type": "string", "format": "binary"} for name in spec.files}
    made["required"] = [*made.get("required", ()), *(name for name, needed in spec.files.items() if needed)]
    return made


def request_schema(spec: Spec, model: LoadedModel, components: dict[str, Any]) -> dict[str, Any]:
    """What one model accepts on one route: OpenAI's fields it honours or ignores, its knobs, the files."""
    assert spec.schema is not None
    knobs = knobs_of(model, str(spec.kind))
    made = _schema(knobs, f"{model.card.key}.{spec.kind}", components)
    openai = _schema(spec.schema, spec.schema.__name__, components)["properties"]
    honoured = {
        name for name, info in spec.schema.model_fields.items() if _accepted(name, owner(info), knobs.model_fields)
    }
    properties = {name: value for name, value in openai.items() if name in honoured}
    properties |= {name: value for name, value in made.get("properties", {}).items() if name not in properties}
    properties |= {name: {"type": "string", "format": "binary"} for name in spec.files}
    properties["model"] = {"const": model.card.key}
    required = [name for name, info in spec.schema.model_fields.items() if info.is_required()]
    required += [name for name in made.get("required", ()) if name not in required]
    required += [name for name, needed in spec.files.items() if needed]
    return {
        "title": model.card.key,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _accepted(name: str, mark: Own, knobs: Mapping[str, Any]) -> bool:
    return mark is not Own.REFUSED and (mark is not Own.MODEL or name in knobs)
