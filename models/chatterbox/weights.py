"""The checkpoint's files and tensor names to ours, with everything in it accounted for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from models.chatterbox.config import T3Config, from_shapes
from models.chatterbox.t3 import T3
from models.chatterbox.voice_encoder import VoiceEncoder
from models.weights.loading import load_strict, on_meta, read_safetensors
from serving.errors import SetupError

# Tables that the reference makes and never reads: text is trained to be predicted too, and the backbones come with
# an embedding that speech and text have their own of.
UNUSED_LLAMA = ("text_head.weight", "tfmr.embed_tokens.weight")
UNUSED_GPT2 = ("text_head.weight", "tfmr.wte.weight")
UNUSED_SPEAKER = ("similarity_weight", "similarity_bias")
TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")  # GPT-2 keeps its matrices input first
Tensors = dict[str, Tensor]


def without(tensors: Mapping[str, Tensor], unused: tuple[str, ...]) -> Tensors:
    """The tensors but for those that are in every checkpoint and never read. Raises `SetupError` if one lacks."""
    missing = [name for name in unused if name not in tensors]
    if missing:
        raise SetupError(f"the weights have no {', '.join(missing)}: not a checkpoint of this model", param="weights")
    return {name: tensor for name, tensor in tensors.items() if name not in unused}


def t3_tensors(tensors: Mapping[str, Tensor]) -> tuple[T3Config, Tensors]:
    """Sizes and tensors of a T3 by the checkpoint's names. GPT-2's matrices are turned to output first."""
    tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    if "speech_emb.weight" not in tensors:
        raise SetupError("the weights have no speech_emb.weight: not a T3", param="weights")
    config = from_shapes(tensors)
    kept = without(tensors, UNUSED_GPT2 if config.turbo else UNUSED_LLAMA)
    if not config.turbo:
        return config, kept
    return config, {name: _turned(tensor) if name.endswith(TRANSPOSED) else tensor for name, tensor in kept.items()}


def _turned(tensor: Tensor) -> Tensor:
    return tensor.t().contiguous()


def load_t3(tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> T3:
    """T3 with the tensors of a checkpoint, none missing and none left over."""
    config, named = t3_tensors(tensors)
    positions = named["tfmr.wpe.weight"].shape[0] if config.turbo else 0
    return load_strict(on_meta(lambda: T3(config, positions)), named, dtype=dtype).eval()


def load_speaker(tensors: Mapping[str, Tensor]) -> VoiceEncoder:
    """The speaker encoder with the tensors of a checkpoint."""
    return load_strict(on_meta(VoiceEncoder), without(tensors, UNUSED_SPEAKER), dtype=torch.float32).eval()


def read(path: Path) -> Tensors:
    """The tensors of a `.safetensors` or `.pt` file. Raises `SetupError`."""
    if not path.is_file():
        raise SetupError(f"{path.parent} has no {path.name}", param="weights")
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    loaded: Tensors = torch.load(path, map_location="cpu", weights_only=True)
    return loaded
