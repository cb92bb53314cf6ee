"""Validate data against a pydantic model; the error names the field, the rule and the nearest valid value."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from serving.errors import BadRequest, nearest

M = TypeVar("M", bound=BaseModel)

BOUNDS = {
    "greater_than_equal": ("ge", "must be at least {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "greater_than": ("gt", "must be greater than {}"),
    "less_than": ("lt", "must be less than {}"),
    "multiple_of": ("multiple_of", "must be a multiple of {}"),
    "string_too_short": ("min_length", "must have at least {} characters"),
    "string_too_long": ("max_length", "must have at most {} characters"),
    "too_short": ("min_length", "must have at least {} items"),
    "too_long": ("max_length", "must have at most {} items"),
}


def check(model: type[M], data: Mapping[str, Any], *, text: bool = False, known: Iterable[str] = ()) -> M:
    """`data` as an instance of `model`, or `BadRequest`.

    JSON values keep their types (no "0.5" for a number); with `text` every value may be a string, as in a form.
    `known` adds names that an unknown field could have meant.
    """
    try:
        if text:
            return model.model_validate(data)
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        raise explain(error, model, known, data) from None


def explain(
    error: ValidationError, model: type[BaseModel], known: Iterable[str] = (), data: Mapping[str, Any] | None = None
) -> BadRequest:
    """One of pydantic's findings as an error for people: the deepest one at the first field that is wrong.

    A union reports what every branch found; the branch that got furthest is the one that was meant. With the `data`
    its name, which stands in the location, is told from the fields that a caller wrote.
    """
    found = error.errors(include_url=False)
    name = found[0]["loc"][:1]
    first = max((one for one in found if one["loc"][:1] == name), key=lambda one: len(one["loc"]))
    more = len({one["loc"][:1] for one in found}) - 1
    place = [part for part in first["loc"] if not _is_branch(part)]
    param = ".".join(str(part) for part in (place if data is None else _written(place, data))) or None
    near = names_at(model, first["loc"][:-1]) | (set(known) if len(first["loc"]) == 1 else set())
    message, code = _sentence(first, param, near)
    if more:
        message += f" ({more} more {'error' if more == 1 else 'errors'}.)"
    return BadRequest(message, param=param, code=code)


def unknown(name: str, valid: Iterable[str]) -> BadRequest:
    """A field that no schema has."""
    message = f'Unknown parameter "{name}".{nearest(name, valid)}'
    return BadRequest(message, param=name, code="unknown_parameter")


def names_at(model: type[BaseModel], location: Iterable[int | str]) -> set[str]:
    """Valid field names of the model nested in `model` at `location`."""
    for part in location:
        info = model.model_fields.get(str(part))
        inner = [m for m in _models(info.annotation) if m] if info else []
        if inner:
            model = inner[0]
    return {info.alias or name for name, info in model.model_fields.items()}


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _is_branch(part: int | str) -> bool:
    """Pydantic puts the tried branch of a union into the location; a caller never wrote it."""
    if not isinstance(part, str):
        return False
    return part in {"str", "int", "float", "bool", "none"} or "[" in part or part.startswith("constrained-")


def _written(place: list[int | str], data: Any) -> Iterator[int | str]:
    """The parts of a location that lead into the data, and its last one, which may be missing there."""
    for part in place[:-1]:
        if (isinstance(data, Mapping) and part not in data) or (isinstance(data, list) and isinstance(part, str)):
            continue  # a branch
        data = None if isinstance(data, str | int | float | None) else data[part]
        yield part
    yield from place[-1:]


def _sentence(error: ErrorDetails, param: str | None, valid: set[str]) -> tuple[str, str]:
    kind, context, name = error["type"], error.get("ctx", {}), f'"{param}"'
    if kind == "missing":
        return f"You must provide {name}.", "missing_required_parameter"
    if kind == "extra_forbidden":
        last = str(error["loc"][-1])
        return f'Unknown parameter "{last}".{nearest(last, valid)}', "unknown_parameter"
    if kind in BOUNDS:
        key, rule = BOUNDS[kind]
        limit = context[key]
        hint = f" The nearest valid value is {limit}." if key in {"ge", "le"} else ""
        return f"{name} {rule.format(limit)}{_got(error['input'])}.{hint}", "invalid_value"
    if kind in {"literal_error", "enum"}:
        return (
            f"{name} has no value {_shown(error['input'])}.{_choices(error['input'], context['expected'])}",
            "invalid_value",
        )
    if kind == "union_tag_invalid":
        field = str(context["discriminator"]).strip("'")
        hint = _choices(context["tag"], context["expected_tags"])
        return f"{name}: {field} has no value {_shown(context['tag'])}.{hint}", "invalid_value"
    if kind == "value_error":
        return f"{name}: {context.get('error', error['msg'])}", "invalid_value"
    code = "invalid_type" if kind.endswith(("_type", "_parsing")) else "invalid_value"
    rule = error["msg"][0].lower() + error["msg"][1:]
    return f"{name}: {rule}{_got(error['input'])}.", code


def _choices(given: Any, expected: str) -> str:
    """The nearest of pydantic's expected values, and all of them."""
    options = [part.strip("' ") for part in expected.replace(" or ", ", ").split(", ")]
    hint = nearest(str(given), options)
    return hint if hint.startswith(" Valid") else f"{hint} Valid: {', '.join(options)}."


def _got(value: Any) -> str:
    return f", got {_shown(value)}" if isinstance(value, str | int | float | bool) else ""


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + '..."'
