"""A checkpoint's dimensions, read from its real config.json: of the language model alone, or of the whole family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.components.layers.attention import AttentionShape
from models.components.layers.deltanet import DeltaNetShape
from serving.errors import SetupError

LINEAR, FULL = "linear_attention", "full_attention"
TYPES = ("qwen3_5", "qwen3_5_text")
SECTIONS = (11, 11, 10)
# What the network computes, where a config could say otherwise.
FIXED: Mapping[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "output_gate_type": "swish",  # Qwen3.8's name for the SiLU of the DeltaNet's output
}


@dataclass(frozen=True, slots=True)
class Qwen35Config:
    """`layers`: the kind of each. `sections`: frequencies a position axis turns. `ends`: tokens that end an answer."""

    dim: int
    hidden: int
    vocab: int
    layers: tuple[str, ...]
    heads: int
    kv_heads: int
    head_dim: int
    delta_k_heads: int
    delta_v_heads: int
    delta_k_dim: int
    delta_v_dim: int
    kernel: int
    eps: float
    rope_base: float
    rotary_dim: int
    sections: tuple[int, ...]
    context: int
    tied: bool
    ends: tuple[int, ...] = ()

    @property
    def attention(self) -> AttentionShape:
        return AttentionShape(
            self.dim, self.heads, self.kv_heads, self.head_dim, gated=True, qk_norm=True, eps=self.eps, offset=1.0
        )

    @property
    def delta(self) -> DeltaNetShape:
        heads = (self.delta_k_heads, self.delta_v_heads)
        return DeltaNetShape(self.dim, *heads, self.delta_k_dim, self.delta_v_dim, self.kernel, self.eps)

    def of(self, kind: str) -> list[int]:
        """The indices of the layers of a kind."""
        return [i for i, layer in enumerate(self.layers) if layer == kind]


def from_json(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> Qwen35Config:
    """Of config.json, and of generation_config.json where there is one. Raises `SetupError`."""
    if config.get("model_type") not in TYPES:
        raise SetupError(f"the checkpoint is a {config.get('model_type')!r}, not one of {TYPES}", param="weights")
    text = config.get("text_config", config)
    for name, value in FIXED.items():
        if text.get(name, value) != value:
            raise SetupError(f"the checkpoint has {name}={text[name]!r}; this port computes {value!r}", param="weights")
    rope = _rope(text)
    return Qwen35Config(
        dim=text["hidden_size"],
        hidden=text["intermediate_size"],
        vocab=text["vocab_size"],
        layers=_layers(text),
        heads=text["num_attention_heads"],
        kv_heads=text["num_key_value_heads"],
        head_dim=text["head_dim"],
        delta_k_heads=text["linear_num_key_heads"],
        delta_v_heads=text["linear_num_value_heads"],
        delta_k_dim=text["linear_key_head_dim"],
        delta_v_dim=text["linear_value_head_dim"],
        kernel=text["linear_conv_kernel_dim"],
        eps=text["rms_norm_eps"],
        rope_base=float(rope["rope_theta"]),
        rotary_dim=int(text["head_dim"] * rope.get("partial_rotary_factor", 0.25)),
        sections=tuple(rope.get("mrope_section", SECTIONS)),
        context=text["max_position_embeddings"],
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        ends=_ends((generation or {}).get("eos_token_id", text.get("eos_token_id"))),
    )


def _layers(text: Mapping[str, Any]) -> tuple[str, ...]:
    every = text.get("full_attention_interval", 4)
    made = [FULL if (i + 1) % every == 0 else LINEAR for i in range(text["num_hidden_layers"])]
    layers = tuple(text.get("layer_types") or made)
    if len(layers) != text["num_hidden_layers"] or not set(layers) <= {LINEAR, FULL}:
        raise SetupError(f"layer_types has {sorted(set(layers))} in {len(layers)} layers", param="weights")
    return layers


def _rope(text: Mapping[str, Any]) -> Mapping[str, Any]:
    rope: Mapping[str, Any] = text.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default" or not rope.get("mrope_interleaved", True):
        raise SetupError(
            f"the checkpoint's positions are {dict(rope)}; this port has the default ones", param="weights"
        )
    return rope


def _ends(given: int | list[int] | None) -> tuple[int, ...]:
    return () if given is None else (given,) if isinstance(given, int) else tuple(given)
