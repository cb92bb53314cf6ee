"""`/generate` and `/generate/ws`: any model's own inputs and outputs, by port."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from serving.api.fields import Seeded
from serving.errors import BadRequest

DType = Literal["float32", "float64", "int16", "int32", "int64", "uint8", "bool"]
SESSION = r"^[A-Za-z0-9._-]{1,128}$"


class Generate(Seeded):
    """Fields of a request; media come as files of a form or as data URLs in JSON."""

    text: str | None = None
    audio: str | None = None
    image: str | None = None
    session: Annotated[str | None, Field(pattern=SESSION)] = None
    stream: bool = False


class Array(BaseModel):
    """An array in JSON: raw little-endian bytes in base64."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: DType
    shape: tuple[Annotated[int, Field(ge=0)], ...]
    data: str

    def load(self, param: str) -> np.ndarray:
        """The array; its leading axis counts items. Raises `BadRequest` where bytes and shape disagree."""
        try:
            raw = base64.b64decode(self.data, validate=True)
            values = np.frombuffer(raw, np.dtype(self.dtype).newbyteorder("<")).reshape(self.shape)
        except (binascii.Error, ValueError):
            rule = f"its bytes are not base64 of {self.dtype} {list(self.shape)}"
            raise BadRequest(f'"{param}": {rule}.', param=param, code="invalid_array") from None
        if not self.shape:
            raise BadRequest(f'"{param}" needs an axis of items.', param=param, code="invalid_array")
        if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
            raise BadRequest(f'"{param}" holds values that are not finite.', param=param, code="invalid_array")
        return values.astype(self.dtype)


class Event(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Append(Event):
    type: Literal["append"]
    port: Annotated[str, Field(min_length=1, max_length=64)]
    array: Array


class EndInput(Event):
    type: Literal["end_input"]
    port: Annotated[str, Field(min_length=1, max_length=64)]


class Cancel(Event):
    type: Literal["cancel"]


EVENTS: Mapping[str, type[Event]] = {"append": Append, "end_input": EndInput, "cancel": Cancel}


def to_json(value: Any) -> Any:
    """A port's value as JSON; arrays as `Array`, bytes as a list of numbers."""
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value)
        little = data.astype(data.dtype.newbyteorder("<"), copy=False)
        return {
            "dtype": value.dtype.name,
            "shape": list(value.shape),
            "data": base64.b64encode(little.tobytes()).decode(),
        }
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, bytes):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return to_json(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value
