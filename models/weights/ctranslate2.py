"""Reads CTranslate2's `model.bin`, binary version 6, as its converter writes it.

Little endian: u32 version, str model name, u32 model revision, u32 number of variables, and for each of them
str name, u8 rank, u32 a dimension, u8 dtype, u32 bytes, the values; then u32 number of aliases, and for each
of them str alias, str target. A str is a u16 length that counts the closing NUL, then UTF-8, then NUL.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from serving.errors import SetupError

VERSION = 6
DTYPES = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """What a model.bin holds: `variables` by their names, `aliases` as second names of variables."""

    name: str
    revision: int
    variables: Mapping[str, Tensor]
    aliases: Mapping[str, str]


class _Reader:
    def __init__(self, path: Path, data: bytes | mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def fail(self, reason: str) -> SetupError:
        return SetupError(f"{self.path}: {reason} (at byte {self.at})", param="weights")

    def take(self, size: int, what: str) -> bytes:
        if self.at + size > len(self.data):
            raise self.fail(f"the file ends inside {what}: {size} bytes wanted, {len(self.data) - self.at} left")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, layout: str, what: str) -> int:
        return int(struct.unpack(f"<{layout}", self.take(struct.calcsize(layout), what))[0])

    def text(self, what: str) -> str:
        raw = self.take(self.number("H", what), what)
        if raw[-1:] != b"\0":
            raise self.fail(f"{what} does not end in NUL")
        try:
            return raw[:-1].decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8") from error

    def variable(self) -> tuple[str, Tensor]:
        name = self.text("a variable's name")
        shape = [self.number("I", f"the shape of {name}") for _ in range(self.number("B", f"the rank of {name}"))]
        kind = self.number("B", f"the dtype of {name}")
        if kind >= len(DTYPES):
            raise self.fail(f"{name} has the unknown dtype {kind}")
        dtype, size = DTYPES[kind], self.number("I", f"the size of {name}")
        if size != math.prod(shape) * dtype.itemsize:
            raise self.fail(f"{name} says {size} bytes, but {shape} {dtype} is {math.prod(shape) * dtype.itemsize}")
        raw = bytearray(self.take(size, name))
        flat = torch.frombuffer(raw, dtype=dtype) if size else torch.empty(0, dtype=dtype)
        return name, flat.reshape(shape)


def read(path: Path) -> ModelFile:
    """Read the whole file. Raises `SetupError` for a truncated, longer or unknown file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Reader(path, data))
    except (OSError, ValueError) as error:
        raise SetupError(f"cannot read {path}: {error}", param="weights") from error


def _read(reader: _Reader) -> ModelFile:
    version = reader.number("I", "the version")
    if version != VERSION:
        raise reader.fail(f"binary version {version}; this reader knows {VERSION}")
    name, revision = reader.text("the model's name"), reader.number("I", "the model's revision")
    variables: dict[str, Tensor] = {}
    for _ in range(reader.number("I", "the number of variables")):
        key, value = reader.variable()
        if key in variables:
            raise reader.fail(f"{key} is there twice")
        variables[key] = value
    aliases = {}
    for _ in range(reader.number("I", "the number of aliases")):
        alias, target = reader.text("an alias"), reader.text("an alias's target")
        if target not in variables or alias in variables or alias in aliases:
            raise reader.fail(f"the alias {alias} -> {target} does not fit the variables")
        aliases[alias] = target
    if reader.at != len(reader.data):
        raise reader.fail(f"{len(reader.data) - reader.at} bytes after the end")
    return ModelFile(name, revision, variables, aliases)
