"""The reader against files written here byte by byte, whole and broken in every way the format allows."""

import struct

import pytest
import torch

from models.weights.ctranslate2 import DTYPES, read
from serving.errors import SetupError


def text(value: str) -> bytes:
    raw = value.encode() + b"\0"
    return struct.pack("<H", len(raw)) + raw


def variable(name: str, tensor: torch.Tensor, *, dtype: int | None = None, size: int | None = None) -> bytes:
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    head = struct.pack("<B", tensor.ndim) + struct.pack(f"<{tensor.ndim}I", *tensor.shape)
    kind = DTYPES.index(tensor.dtype) if dtype is None else dtype
    return text(name) + head + struct.pack("<BI", kind, len(raw) if size is None else size) + raw


def model_file(variables: list[bytes], aliases: list[tuple[str, str]] = (), version: int = 6) -> bytes:
    body = struct.pack("<I", version) + text("ToySpec") + struct.pack("<II", 3, len(variables)) + b"".join(variables)
    return body + struct.pack("<I", len(aliases)) + b"".join(text(a) + text(b) for a, b in aliases)


@pytest.fixture
def parse(tmp_path):
    def run(data: bytes):
        path = tmp_path / "model.bin"
        path.write_bytes(data)
        return read(path)

    return run


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3)], ids=str)
def test_every_dtype_and_rank(parse, dtype, shape):
    value = (torch.arange(torch.Size(shape).numel()) - 2).reshape(shape).to(dtype)
    found = parse(model_file([variable("a/weight", value)]))
    assert found.name == "ToySpec"
    assert found.revision == 3
    assert found.variables["a/weight"].dtype == dtype
    assert torch.equal(found.variables["a/weight"], value)


def test_aliases(parse):
    assert parse(model_file([variable("a", torch.ones(2))], [("b", "a")])).aliases == {"b": "a"}


GOOD = model_file([variable("a", torch.ones(2, 3)), variable("b", torch.zeros(()))], [("c", "a")])


@pytest.mark.parametrize("cut", range(1, len(GOOD)))
def test_a_file_cut_anywhere_is_refused(parse, cut):
    with pytest.raises(SetupError, match=r"the file ends inside|does not end in NUL"):
        parse(GOOD[:cut])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (GOOD + b"\0", "1 bytes after the end"),
        (b"", "cannot read"),
        (model_file([], version=5), "binary version 5"),
        (model_file([variable("a", torch.ones(2), dtype=6)]), "unknown dtype 6"),
        (model_file([variable("a", torch.ones(2), size=4)]), "says 4 bytes"),
        (model_file([variable("a", torch.ones(2))] * 2), "a is there twice"),
        (model_file([variable("a", torch.ones(2))], [("b", "x")]), "alias b -> x"),
        (model_file([variable("a", torch.ones(2))], [("a", "a")]), "alias a -> a"),
        (GOOD.replace(b"ToySpec", b"Toy\xffpec"), "not UTF-8"),
    ],
)
def test_what_does_not_fit_is_named(parse, data, reason):
    with pytest.raises(SetupError, match=reason):
        parse(data)


def test_no_such_file(tmp_path):
    with pytest.raises(SetupError, match="cannot read"):
        read(tmp_path / "model.bin")
