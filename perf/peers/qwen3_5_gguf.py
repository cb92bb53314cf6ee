"""A Qwen3.5 network under the names, layouts and fields that llama.cpp's architecture `qwen35` reads from a GGUF file.

Names and fields are those of llama.cpp's converter. A norm's weight is stored with the one that the network adds, the
decay as -exp(A_log), and a convolution without its axis of one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from models.qwen3_5.config import FULL, Qwen35Config
from models.qwen3_5.weights import PREFIXES
from serving.errors import SetupError

ARCHITECTURE = "qwen35"
WHOLE = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}
LAYERS = re.compile(r"layers\.(\d+)\.(.+)")


def tensors(state: Mapping[str, Tensor], config: Qwen35Config) -> dict[str, Tensor]:
    """transformers' tensors under llama.cpp's names, in float32. Raises `SetupError` for what it cannot store."""
    if config.delta_k_heads != config.delta_v_heads:
        raise SetupError("llama.cpp orders the value heads of a DeltaNet otherwise where keys have fewer heads.")
    bare = {PREFIXES.sub("", name): value for name, value in state.items()}
    if config.tied:
        bare.pop("lm_head.weight", None)
    return {_name(name): _stored(name, value.float()).contiguous() for name, value in bare.items()}


def _name(name: str) -> str:
    found = LAYERS.fullmatch(name)
    renamed = LAYER.get(found[2]) if found else WHOLE.get(name)
    if renamed is None:
        raise SetupError(f"{ARCHITECTURE} has no tensor for {name}.")
    return f"blk.{found[1]}.{renamed}" if found else renamed


def _stored(name: str, value: Tensor) -> Tensor:
    if name.endswith("A_log"):
        return -value.exp()
    if name.endswith("conv1d.weight"):
        return value.squeeze(1)  # [C, 1, K] -> [C, K]
    if name.endswith("norm.weight") and "linear_attn" not in name:
        return value + 1
    return value


def fields(config: Qwen35Config, context: int) -> dict[str, Any]:
    """The file's fields for a context of so many tokens; a token's text is its number."""
    every = [index + 1 for index in config.of(FULL)]
    if not every or every != list(range(every[0], len(config.layers) + 1, every[0])):
        raise SetupError(f"{ARCHITECTURE} has full attention in every n-th layer, not in {every}.")
    of_network = {
        "block_count": len(config.layers),
        "full_attention_interval": every[0],
        "context_length": context,
        "embedding_length": config.dim,
        "feed_forward_length": config.hidden,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.eps,
        "rope.freq_base": config.rope_base,
        "rope.dimension_count": config.rotary_dim,
        "rope.dimension_sections": [*config.sections, 0],
        "ssm.conv_kernel": config.kernel,
        "ssm.state_size": config.delta_k_dim,
        "ssm.group_count": config.delta_k_heads,
        "ssm.time_step_rank": config.delta_v_heads,
        "ssm.inner_size": config.delta_v_heads * config.delta_v_dim,
        "vocab_size": config.vocab,
    }
    named = {f"{ARCHITECTURE}.{name}": value for name, value in of_network.items()}
    return {"general.architecture": ARCHITECTURE, **named, **_vocabulary(config.vocab)}


def _vocabulary(count: int) -> dict[str, Any]:
    normal, control = 1, 3
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [f"<{token}>" for token in range(count)],
        "tokenizer.ggml.token_type": [normal] * (count - 1) + [control],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": count - 1,
        "tokenizer.ggml.add_bos_token": False,
    }
