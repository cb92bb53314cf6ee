"""Strict loading: complete sets fill the module, every kind of gap is an error that names it."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from models.weights.loading import load_strict, on_meta, read_safetensors
from serving.errors import SetupError


class Tied(nn.Module):
    """An embedding, a head that shares it, a linear, and one buffer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.mix = nn.Linear(3, 3)
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int64))


def tensors() -> dict[str, torch.Tensor]:
    return {
        "embed.weight": torch.randn(5, 3),
        "mix.weight": torch.randn(3, 3),
        "mix.bias": torch.randn(3),
        "scale": torch.randn(3),
        "steps": torch.tensor([1, 2]),
    }


def test_a_complete_set_fills_a_meta_module_without_copies():
    given = tensors()
    module = load_strict(on_meta(Tied), given)
    assert module.head.weight is module.embed.weight
    assert module.embed.weight.data_ptr() == given["embed.weight"].data_ptr()
    assert torch.equal(module.steps, torch.tensor([1, 2]))
    assert not any(p.requires_grad for p in module.parameters())
    assert module.head(module.embed(torch.tensor([1]))).shape == (1, 5)


def test_either_name_of_a_tied_pair_will_do_and_equal_ones_agree():
    given = tensors()
    given["head.weight"] = given["embed.weight"].clone()
    assert load_strict(on_meta(Tied), given).head.weight.shape == (5, 3)
    del given["embed.weight"]
    assert load_strict(on_meta(Tied), given).embed.weight.shape == (5, 3)


def test_a_cast_touches_floats_only():
    halves = {name: t.half() if t.is_floating_point() else t for name, t in tensors().items()}
    module = load_strict(on_meta(Tied), halves, dtype=torch.float32)
    assert module.mix.weight.dtype == torch.float32
    assert module.steps.dtype == torch.int64


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mix.bias": None}, "1 missing: mix.bias"),
        ({"mix.extra": torch.zeros(1)}, "1 left over: mix.extra"),
        ({"mix.bias": torch.zeros(4)}, r"mix.bias is \[4\], the module has \[3\]"),
        ({"mix.bias": torch.zeros(3).half()}, "mix.bias is torch.float16, the module wants torch.float32"),
        ({"steps": torch.zeros(2)}, "steps is torch.float32, the module wants torch.int64"),
        ({"head.weight": torch.zeros(5, 3)}, "tied but different: embed.weight and head.weight"),
    ],
)
def test_every_gap_is_named(change, reason):
    given = {name: t for name, t in (tensors() | change).items() if t is not None}
    with pytest.raises(SetupError, match=reason):
        load_strict(on_meta(Tied), given)


def test_a_buffer_that_nothing_fills_is_named():
    def make() -> nn.Module:
        module = nn.Linear(2, 2)
        module.register_buffer("window", torch.zeros(4), persistent=False)
        return module

    with pytest.raises(SetupError, match="1 buffers without a value: window"):
        load_strict(on_meta(make), {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)})


def test_shards_are_joined_and_a_missing_one_is_named(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(1)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert set(read_safetensors(tmp_path)) == {"a", "b"}
    assert set(read_safetensors(tmp_path / "one.safetensors")) == {"a"}
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(SetupError, match=r"has no two\.safetensors"):
        read_safetensors(tmp_path)
