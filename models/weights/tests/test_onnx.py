"""The ONNX reader against files written here byte by byte."""

import struct

import numpy as np
import pytest

from models.weights.onnx import OnnxNode, parse, read
from serving.errors import SetupError


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field, value):
    return varint(field << 3) + varint(value)


def data(field, value):
    value = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(value)) + value


def tensor(name, kind, dims, *body):
    return data(5, b"".join([*(number(1, d) for d in dims), number(2, kind), data(8, name), *body]))


def model(*graph):
    return number(1, 9) + data(7, b"".join(graph)) + data(8, number(2, 20))


NODE = data(1, data(1, "x") + data(1, "w") + data(1, "") + data(2, "y") + data(3, "/a/MatMul") + data(4, "MatMul"))
FLOATS = np.array([1.5, -2, 3, 4, 5, 6], np.float32)


def test_nodes():
    assert parse(model(NODE)).nodes == (OnnxNode("/a/MatMul", "MatMul", ("x", "w", ""), ("y",)),)


@pytest.mark.parametrize(
    ("kind", "body", "wanted"),
    [
        (1, data(9, FLOATS.tobytes()), FLOATS),
        (1, data(4, FLOATS.tobytes()), FLOATS),
        (1, b"".join(varint(4 << 3 | 5) + struct.pack("<f", v) for v in FLOATS), FLOATS),
        (11, data(10, FLOATS.astype(np.float64).tobytes()), FLOATS.astype(np.float64)),
        (7, data(7, b"".join(varint(v) for v in (1, -2, 3, 4, 5, 6))), np.array([1, -2, 3, 4, 5, 6])),
        (3, b"".join(number(5, v) for v in (1, -2, 3, 4, 5, 6)), np.array([1, -2, 3, 4, 5, 6], np.int8)),
        (2, data(9, bytes(range(6))), np.arange(6, dtype=np.uint8)),
        (10, data(5, varint(0x3C00) * 6), np.ones(6, np.float16)),
    ],
)
def test_every_way_of_storing_values(kind, body, wanted):
    read_back = parse(model(tensor("w", kind, (2, 3), body))).tensors["w"]
    assert read_back.dtype == wanted.dtype
    assert np.array_equal(read_back, wanted.reshape(2, 3))


def test_a_scalar_and_an_empty_tensor():
    scalar = tensor("s", 1, (), data(9, struct.pack("<f", 7)))
    found = parse(model(scalar, tensor("e", 7, (0,)))).tensors
    assert found["s"].shape == ()
    assert found["s"] == 7
    assert found["e"].shape == (0,)


WHOLE = model(NODE, tensor("w", 1, (2, 3), data(9, FLOATS.tobytes())))


@pytest.mark.parametrize("size", range(len(WHOLE)))
def test_a_file_cut_anywhere_is_refused_or_says_less(size, tmp_path):
    path = tmp_path / "cut.onnx"
    path.write_bytes(WHOLE[:size])
    complete = len(WHOLE) - len(data(8, number(2, 20)))
    if size == complete:
        assert read(path).tensors.keys() == {"w"}
    else:
        with pytest.raises(SetupError, match="cannot read"):
            read(path)


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (tensor("w", 99, (1,), data(9, b"\0")), "unknown data type 99"),
        (tensor("w", 1, (3,), data(9, FLOATS.tobytes())), "6 values for the shape"),
        (tensor("w", 1, (1,), number(14, 1)), "another file"),
        (tensor("w", 1, (0,)) * 2, "twice"),
        (varint(1 << 3 | 3), "wire type 3"),
        (number(1, 4), "a number where a message"),
        (b"\x0a" + b"\xff" * 10, "longer than 64 bits"),
    ],
)
def test_what_it_does_not_know_is_an_error(graph, said):
    with pytest.raises(ValueError, match=said):
        parse(model(graph))


def test_no_graph():
    with pytest.raises(ValueError, match="one graph"):
        parse(number(1, 9))
