"""Checkpoints in the layouts that Whisper comes in, under openai-whisper's names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from models.weights import ctranslate2
from models.weights.convert import converted
from models.weights.loading import read_json, read_safetensors
from models.whisper import config
from models.whisper.config import WhisperConfig
from serving.errors import SetupError

TRANSFORMERS = (
    (r"^model\.", ""),
    (r"\.layers\.", ".blocks."),
    (r"\.self_attn_layer_norm\.", ".attn_ln."),
    (r"\.encoder_attn_layer_norm\.", ".cross_attn_ln."),
    (r"\.final_layer_norm\.", ".mlp_ln."),
    (r"\.self_attn\.", ".attn."),
    (r"\.encoder_attn\.", ".cross_attn."),
    (r"\.q_proj\.", ".query."),
    (r"\.k_proj\.", ".key."),
    (r"\.v_proj\.", ".value."),
    (r"\.out_proj\.", ".out."),
    (r"\.fc1\.", ".mlp.0."),
    (r"\.fc2\.", ".mlp.2."),
    (r"^encoder\.layer_norm\.", "encoder.ln_post."),
    (r"^decoder\.layer_norm\.", "decoder.ln."),
    (r"\.embed_positions\.weight$", ".positional_embedding"),
    (r"\.embed_tokens\.", ".token_embedding."),
    (r"^proj_out\.", "decoder.head."),
)
CTRANSLATE2 = (
    (r"/", "."),
    (r"\.layer_(\d+)\.", r".blocks.\1."),
    (r"\.self_attention\.layer_norm\.", ".attn_ln."),
    (r"\.attention\.layer_norm\.", ".cross_attn_ln."),
    (r"\.ffn\.layer_norm\.", ".mlp_ln."),
    (r"\.ffn\.linear_0\.", ".mlp.0."),
    (r"\.ffn\.linear_1\.", ".mlp.2."),
    (r"^encoder\.layer_norm\.", "encoder.ln_post."),
    (r"^decoder\.layer_norm\.", "decoder.ln."),
    (r"\.position_encodings\.encodings$", ".positional_embedding"),
    (r"\.embeddings\.", ".token_embedding."),
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
)
# A fused linear's rows, in order, under the attention they belong to.
FUSED = {
    "self_attention.linear_0": ("attn", ("query", "key", "value")),
    "self_attention.linear_1": ("attn", ("out",)),
    "attention.linear_0": ("cross_attn", ("query",)),
    "attention.linear_1": ("cross_attn", ("key", "value")),
    "attention.linear_2": ("cross_attn", ("out",)),
}
# Scalars of a model.bin that describe the computation, with the value that this port computes.
SETTINGS = {"activation": 3, "alibi": 0, "pre_norm": 1, "scale_embeddings": 0, "start_from_zero_embedding": 0}
SCALARS = {*SETTINGS, "num_heads", "alignment_heads", "alignment_layer"}
Tensors = dict[str, Tensor]


def renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def from_transformers(tensors: Mapping[str, Tensor]) -> Tensors:
    """Names of `WhisperForConditionalGeneration` to ours; an unknown one stays and fails the load."""
    return {renamed(name, TRANSFORMERS): tensor for name, tensor in tensors.items()}


def from_ctranslate2(variables: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Names of CTranslate2's WhisperSpec to ours, fused projections split. Other settings: `SetupError`."""
    settings = SETTINGS | {"num_heads": variables["decoder/embeddings/weight"].shape[1] // config.HEAD_DIM}
    for name, tensor in variables.items():
        side, _, last = name.rpartition("/")
        if tensor.ndim == 0 and last in SCALARS:
            if tensor.item() != settings.get(last, tensor.item()):
                raise SetupError(f"{side} has {last}={tensor.item()}, not {settings[last]}", param="weights")
            continue
        yield from _unfused(renamed(name, CTRANSLATE2), tensor)


def _unfused(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    match = re.fullmatch(r"(.*)\.((?:self_)?attention\.linear_\d)\.(weight|bias)", name)
    if match is None:
        yield name, tensor
        return
    attention, parts = FUSED[match[2]]
    for part, rows in zip(parts, tensor.chunk(len(parts)), strict=True):
        if part == "key" and match[3] == "bias":
            if rows.count_nonzero():
                raise SetupError(f"{name} biases the keys; Whisper has no such bias", param="weights")
            continue
        yield f"{match[1]}.{attention}.{part}.{match[3]}", rows


def read(folder: Path, cache: Path | None = None, digest: str | None = None) -> tuple[WhisperConfig, Tensors]:
    """Configuration and tensors of a checkpoint folder in any layout. `digest`: the sha256 of its model.bin.

    A model.bin with a digest is converted once, into the cache. Raises `SetupError`.
    """
    if (folder / "model.bin").is_file():
        return _read_ctranslate2(folder, cache, digest)
    if openai := sorted(folder.glob("*.pt")):
        return _read_openai(openai[0])
    dims = config.from_transformers(read_json(folder / "config.json"), read_json(folder / "generation_config.json", {}))
    return dims, from_transformers(read_safetensors(folder))


def _read_openai(path: Path) -> tuple[WhisperConfig, Tensors]:
    saved = torch.load(path, map_location="cpu", weights_only=True)
    heads = saved.get("alignment_heads") or ()
    return config.from_openai(saved["dims"], heads), saved["model_state_dict"]


def _read_ctranslate2(folder: Path, cache: Path | None, digest: str | None) -> tuple[WhisperConfig, Tensors]:
    path = folder / "model.bin"
    if digest is None:
        tensors = dict(_model_file(path))
    else:
        name = f"whisper-ctranslate2-{digest[:16]}"
        tensors = read_safetensors(converted(name, _model_file(path), path.stat().st_size, cache))
    return config.from_shapes(tensors, read_json(folder / "config.json").get("alignment_heads") or ()), tensors


def _model_file(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a model.bin; reads it when the first one is asked for."""
    yield from from_ctranslate2(ctranslate2.read(path).variables)
