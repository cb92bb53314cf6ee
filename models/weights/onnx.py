"""Reads the nodes and initialisers of an ONNX file from protobuf's wire format, without the `onnx` package.

Field numbers follow `onnx.proto` (IR version 9). Attributes, shapes of activations and subgraphs are skipped: they
say how a graph runs, and this reader is for its weights.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from serving.errors import SetupError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MODEL_GRAPH = 7
GRAPH_NODE, GRAPH_INITIALIZER = 1, 5
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_OP = 1, 2, 3, 4
DIMS, DATA_TYPE, FLOATS, INT32S, INT64S, NAME, RAW, DOUBLES, LOCATION = 1, 2, 4, 5, 7, 8, 9, 10, 14
DTYPES: Mapping[int, type[np.generic]] = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    6: np.int32,
    7: np.int64,
    9: np.bool_,
    10: np.float16,
    11: np.float64,
}


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """An operation: its name, the operator, and the names of what it reads and writes ("" = left out)."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """The top-level graph of a model; `tensors` are its initialisers by name."""

    nodes: tuple[OnnxNode, ...]
    tensors: Mapping[str, np.ndarray]


def read(path: Path) -> OnnxGraph:
    """Read a file. Raises `SetupError` for one that is cut short, or holds what this reader does not know."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return parse(bytes(data))
    except (OSError, ValueError) as error:
        raise SetupError(f"cannot read {path} as ONNX: {error}", param="weights") from error


def parse(data: bytes) -> OnnxGraph:
    """The graph of a serialised ModelProto. Raises `ValueError`."""
    graphs = [value for number, value in _fields(memoryview(data)) if number == MODEL_GRAPH]
    if len(graphs) != 1:
        raise ValueError(f"a model has one graph, this has {len(graphs)}")
    nodes: list[OnnxNode] = []
    tensors: dict[str, np.ndarray] = {}
    for number, value in _fields(_view(graphs[0])):
        if number == GRAPH_NODE:
            nodes.append(_node(_view(value)))
        elif number == GRAPH_INITIALIZER:
            name, array = _tensor(_view(value))
            if name in tensors:
                raise ValueError(f"the initialiser {name} is there twice")
            tensors[name] = array
    return OnnxGraph(tuple(nodes), tensors)


Value = int | memoryview


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("the file ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is longer than 64 bits")


def _fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Field numbers and values of a message: numbers as int, anything else as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == BYTES:
            size, at = _varint(data, at)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise ValueError(f"unknown wire type {wire}")
        if at + size > len(data):
            raise ValueError(f"the file ends inside field {key >> 3}: {size} bytes wanted, {len(data) - at} left")
        yield key >> 3, data[at : at + size]
        at += size


def _view(value: Value) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message or text should be")
    return value


def _text(value: Value) -> str:
    return bytes(_view(value)).decode()


def _node(data: memoryview) -> OnnxNode:
    texts: dict[int, list[str]] = {NODE_INPUT: [], NODE_OUTPUT: [], NODE_NAME: [], NODE_OP: []}
    for number, value in _fields(data):
        if number in texts:
            texts[number].append(_text(value))
    name, op = "".join(texts[NODE_NAME]), "".join(texts[NODE_OP])
    return OnnxNode(name, op, tuple(texts[NODE_INPUT]), tuple(texts[NODE_OUTPUT]))


@dataclass(slots=True)
class _Parts:
    """The fields of a TensorProto as they come."""

    name: str = ""
    kind: int = 0
    dims: list[int] = field(default_factory=list)
    raw: bytes | None = None
    ints: list[int] = field(default_factory=list)
    packed: bytearray = field(default_factory=bytearray)  # float_data or double_data


def _numbers(value: Value) -> list[int]:
    """A repeated integer, one or packed; negative ones are 64-bit two's complement."""
    found: list[int] = []
    if isinstance(value, int):
        found.append(value)
    else:
        at = 0
        while at < len(value):
            number, at = _varint(value, at)
            found.append(number)
    return [n - (1 << 64) if n >> 63 else n for n in found]


def _tensor(data: memoryview) -> tuple[str, np.ndarray]:
    parts = _Parts()
    for number, value in _fields(data):
        if number == DIMS:
            parts.dims += _numbers(value)
        elif number == DATA_TYPE and isinstance(value, int):
            parts.kind = value
        elif number == NAME:
            parts.name = _text(value)
        elif number == RAW:
            parts.raw = bytes(_view(value))
        elif number in (FLOATS, DOUBLES):
            parts.packed += _view(value)
        elif number in (INT32S, INT64S):
            parts.ints += _numbers(value)
        elif number == LOCATION and value:
            raise ValueError(f"{parts.name} lies in another file")
    return parts.name, _array(parts)


def _array(parts: _Parts) -> np.ndarray:
    dtype = DTYPES.get(parts.kind)
    if dtype is None:
        raise ValueError(f"{parts.name} has the unknown data type {parts.kind}")
    if parts.raw is not None:
        flat = np.frombuffer(parts.raw, np.dtype(dtype).newbyteorder("<"))
    elif parts.packed:
        flat = np.frombuffer(bytes(parts.packed), np.dtype(dtype).newbyteorder("<"))
    else:
        flat = _from_ints(parts.ints, dtype)
    if flat.size != int(np.prod(parts.dims, dtype=np.int64)):
        raise ValueError(f"{parts.name} has {flat.size} values for the shape {parts.dims}")
    return flat.astype(dtype, copy=False).reshape(parts.dims)


def _from_ints(values: list[int], dtype: type[np.generic]) -> np.ndarray:
    """Small types travel as integers; float16 as its bits."""
    if dtype is np.float16:
        return np.array(values, np.uint16).view(np.float16)
    return np.array(values, dtype)
