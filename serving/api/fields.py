"""Which part of the system owns each request field, and the two-step validation that follows from it.

A schema lists OpenAI's fields of a route; each is marked with an `Own`. The route validates its part; what is left
is validated by the loaded model's knobs. A field in neither is an error that names the nearest valid one. JSON
null means "not given", as in OpenAI's schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from serving.errors import BadRequest
from serving.strict import check, unknown


class Own(Enum):
    """Who honours a field of OpenAI's schema."""

    ROUTE = "route"
    MODEL = "model"  # its knobs, else refused: ignoring it would change the answer
    HINT = "hint"  # its knobs, else accepted without effect
    IGNORED = "ignored"  # accepted without effect and named in x-ignored-parameters
    REFUSED = "refused"  # honoured by no model here


class Schema(BaseModel):
    """OpenAI's fields of one route; subclasses mark each field with an `Own` (default: the route)."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    model: Annotated[str, Field(min_length=1, max_length=256, examples=["whisper_tiny_en"])]


class Seeded(Schema):
    """A route whose answer may be drawn; `seed` is ours where OpenAI has none, and is echoed in `x-seed`."""

    seed: Annotated[int | None, Field(ge=0, lt=1 << 63)] = None


S = TypeVar("S", bound=Schema)


@dataclass(frozen=True, slots=True)
class Parsed(Generic[S]):
    """A request after validation: the route's part, the model's knobs, and names accepted without effect."""

    route: S
    knobs: Any
    ignored: tuple[str, ...]


def owner(info: FieldInfo) -> Own:
    return next((mark for mark in info.metadata if isinstance(mark, Own)), Own.ROUTE)


def parse(
    data: Mapping[str, Any], schema: type[S], knobs: type[BaseModel], *, text: bool = False, **extra: Any
) -> Parsed[S]:
    """Validate a request's fields. `text`: they come from a form. `extra` are knobs that the route itself sets.

    Knobs that a model validates and does not use are the names in its class's `IGNORES`.
    """
    given = {name: value for name, value in data.items() if value is not None}
    openai, own = schema.model_fields, knobs.model_fields
    reserved = set(extra)
    for name in given:
        if name not in openai and (name not in own or name in reserved):
            raise unknown(name, (set(openai) | set(own)) - reserved)
    given = {name: value for name, value in given.items() if not _refused(name, value, openai.get(name), data)}
    if text:
        given = {name: _from_text(value, openai.get(name) or own[name]) for name, value in given.items()}
    names = openai.keys() | own.keys()
    route = check(schema, {n: v for n, v in given.items() if n in openai}, text=text, known=names)
    ignored = (*_without_effect(route, given, own), *(n for n in getattr(knobs, "IGNORES", ()) if n in given))
    mine = {n: v for n, v in given.items() if n in own and (n not in openai or owner(openai[n]) is not Own.ROUTE)}
    return Parsed(route, check(knobs, {**mine, **extra}, text=text, known=names), ignored)


def _refused(name: str, value: Any, info: FieldInfo | None, data: Mapping[str, Any]) -> bool:
    """Whether a field is one that no model honours, given as OpenAI's default; any other value of it raises."""
    if info is None or owner(info) is not Own.REFUSED:
        return False
    default = info.get_default(call_default_factory=True)
    if value not in (default, json.dumps(default), [*default] if isinstance(default, tuple) else default):
        raise _unsupported(name, data.get("model"))
    return True


def _unsupported(name: str, model: object) -> BadRequest:
    message = f'"{name}" is not supported by model "{model}"; leave it out.'
    return BadRequest(message, param=name, code="unsupported_parameter")


def _without_effect(route: Schema, given: Mapping[str, Any], knobs: Mapping[str, FieldInfo]) -> Iterator[str]:
    """Given fields that change nothing; raises for those whose neglect would change the answer."""
    for name, info in type(route).model_fields.items():
        mark = owner(info)
        if name not in given or mark is Own.ROUTE or name in knobs:
            continue
        if mark in {Own.HINT, Own.IGNORED}:
            yield name
        elif getattr(route, name) != info.get_default(call_default_factory=True):
            raise _unsupported(name, route.model)


def _from_text(value: Any, info: FieldInfo) -> Any:
    """A form's value for a field: one string stays, several become a list, JSON is read where the field nests."""
    if accepts(info.annotation, list, tuple, set, frozenset):
        values = value if isinstance(value, list) else [value]
        return _json(values[0]) if len(values) == 1 and str(values[0]).startswith("[") else values
    if isinstance(value, list):
        value = value[-1]
    nested = isinstance(value, str) and value.startswith("{") and not accepts(info.annotation, str)
    return _json(value) if nested else value


def _json(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def accepts(annotation: Any, *kinds: type) -> bool:
    """Whether a type annotation admits one of these types anywhere but inside a container."""
    origin = get_origin(annotation)
    if origin is not None and isinstance(origin, type):
        return issubclass(origin, kinds)
    if origin is not None:
        return any(accepts(part, *kinds) for part in get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, kinds)
