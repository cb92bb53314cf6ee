"""The checkpoint of S3Gen: weight norms multiplied out, constants of the code left out, the rest as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from models.chatterbox.s3gen import S3Gen
from models.chatterbox.s3gen_config import S3GenConfig
from models.weights.loading import load_strict, on_meta

GAIN, DIRECTION = ".parametrizations.weight.original0", ".parametrizations.weight.original1"
CONSTANTS = ("tokenizer._mel_filters", "tokenizer.window")  # in some checkpoints; this code computes them


def converted(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in the port's names: a weight under norm is its direction times its gain, a row of it at a time."""
    ours = {}
    for name, tensor in tensors.items():
        if name in CONSTANTS or name.endswith(GAIN):
            continue
        if name.endswith(DIRECTION):
            plain = name.removesuffix(DIRECTION)
            ours[f"{plain}.weight"] = torch._weight_norm(tensor, tensors[plain + GAIN], 0)
        else:
            ours[name] = tensor
    return ours


def s3gen(tensors: Mapping[str, Tensor], config: S3GenConfig) -> S3Gen:
    """The networks with a checkpoint's weights. Raises `SetupError` naming what is missing or left over."""
    return load_strict(on_meta(lambda: S3Gen(config)), converted(tensors)).eval()


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of `s3gen.safetensors`, or of Multilingual's `s3gen.pt`."""
    if path.suffix == ".pt":
        return torch.load(path, map_location="cpu", weights_only=True)
    from safetensors.torch import load_file

    return load_file(path)
