"""Checkpoints under transformers' names to ours, each tensor used once.

Projections of one input become one matrix: q, gate, k and v; the DeltaNet's qkv, z, b and a; gate and up. The image
tower and the multi-token-prediction head are no part of this network and are left out by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from models.qwen3_5.config import FULL, Qwen35Config, from_json
from models.weights.loading import read_json, read_safetensors

PREFIXES = re.compile(r"^(model\.language_model\.|language_model\.model\.|model\.)")
ELSEWHERE = re.compile(r"^(model\.visual\.|visual\.|mtp\.|model\.mtp\.)")
JOINED = {  # ours -> the checkpoint's, in order of rows
    "self_attn.qkv.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "linear_attn.in_proj.weight": tuple(f"linear_attn.in_proj_{part}.weight" for part in ("qkv", "z", "b", "a")),
    "mlp.gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
}
CONV = ("linear_attn.conv1d.weight", "linear_attn.conv_weight")
Tensors = dict[str, Tensor]


def from_transformers(tensors: Mapping[str, Tensor], config: Qwen35Config) -> Tensors:
    """Names and layouts of `Qwen3_5ForConditionalGeneration` or `ForCausalLM` to ours; an unknown name stays."""
    left = {PREFIXES.sub("", name): tensor for name, tensor in tensors.items() if not ELSEWHERE.match(name)}
    if config.tied:
        left.setdefault("lm_head.weight", left.get("embed_tokens.weight", torch.empty(0)))
    made = dict(_layers(left, config))
    return {**left, **made}


def _layers(left: Tensors, config: Qwen35Config) -> Iterator[tuple[str, Tensor]]:
    """The joined tensors of every layer; what they are made of is taken out of `left`."""
    for index in range(len(config.layers)):
        head = f"layers.{index}."
        for ours, theirs in JOINED.items():
            names = [head + name for name in theirs]
            if all(name in left for name in names):  # what is missing keeps its parts, and the strict load names them
                parts = [left.pop(name) for name in names]
                if config.layers[index] == FULL and "self_attn" in ours:
                    parts[0] = _gates_behind(parts[0], config)
                yield head + ours, torch.cat(parts)
        if head + CONV[0] in left:
            yield head + CONV[1], left.pop(head + CONV[0]).squeeze(1).T.contiguous()


def _gates_behind(rows: Tensor, config: Qwen35Config) -> Tensor:
    """The checkpoint has each head's query and then its gate; ours has all queries and then all gates."""
    by_head = rows.view(config.heads, 2, config.head_dim, -1)
    return by_head.transpose(0, 1).reshape(rows.shape)


def read(folder: Path) -> tuple[Qwen35Config, Tensors]:
    """Configuration and tensors of a checkpoint folder. Raises `SetupError`."""
    config = from_json(read_json(folder / "config.json"), read_json(folder / "generation_config.json", {}))
    return config, from_transformers(read_safetensors(folder), config)
