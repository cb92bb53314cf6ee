"""Qwen3.5 beside llama.cpp: the file that it gets holds the port's network, and what is printed is what was taken."""

from __future__ import annotations

import pytest
import torch

from models.qwen3_5.config import FULL, from_json
from models.qwen3_5.tests import tiny
from perf.peers import llama_cpp, qwen3_5_gguf
from perf.qwen3_5_sides import Time
from perf.qwen3_5_speed import told
from serving.errors import SetupError

HEADS = {"linear_num_key_heads": 4, "linear_num_value_heads": 4}


def network(*, tied: bool = True, **text):
    """transformers' language model with its head, and the port's dimensions of it."""
    model = tiny.reference(tied=tied, **{**HEADS, **text})
    state = {name: value for name, value in model.state_dict().items() if "visual" not in name}
    return model, state, from_json({"model_type": "qwen3_5", **model.config.to_dict()})


def shapes(config) -> dict[str, tuple[int, ...]]:
    """What llama.cpp wants, as torch has shapes: rows first."""
    d, ff, heads = config.dim, config.hidden, config.delta_v_heads
    keys, values = config.delta_k_heads * config.delta_k_dim, heads * config.delta_v_dim
    queries, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    made: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, d), "output_norm.weight": (d,)}
    every = {
        "attn_norm.weight": (d,),
        "post_attention_norm.weight": (d,),
        "ffn_gate.weight": (ff, d),
        "ffn_up.weight": (ff, d),
        "ffn_down.weight": (d, ff),
    }
    full = {
        "attn_q.weight": (2 * queries, d),  # with the gates
        "attn_k.weight": (kv, d),
        "attn_v.weight": (kv, d),
        "attn_output.weight": (d, queries),
        "attn_q_norm.weight": (config.head_dim,),
        "attn_k_norm.weight": (config.head_dim,),
    }
    linear = {
        "attn_qkv.weight": (2 * keys + values, d),
        "attn_gate.weight": (values, d),
        "ssm_beta.weight": (heads, d),
        "ssm_alpha.weight": (heads, d),
        "ssm_conv1d.weight": (2 * keys + values, config.kernel),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads,),
        "ssm_norm.weight": (config.delta_v_dim,),
        "ssm_out.weight": (d, values),
    }
    for index, kind in enumerate(config.layers):
        mixer = full if kind == FULL else linear
        made |= {f"blk.{index}.{name}": shape for name, shape in {**every, **mixer}.items()}
    return made


@pytest.mark.parametrize("tied", [True, False])
def test_a_file_for_llama_cpp_has_the_names_and_shapes_of_the_ports_dimensions(tied):
    _, state, config = network(tied=tied)
    wanted = shapes(config) | ({} if tied else {"output.weight": (config.vocab, config.dim)})
    made = qwen3_5_gguf.tensors(state, config)
    assert {name: tuple(value.shape) for name, value in made.items()} == wanted
    assert {value.dtype for value in made.values()} == {torch.float32}


def test_norms_and_decays_are_stored_as_llama_cpp_computes_with_them():
    _, state, config = network()
    made, layer = qwen3_5_gguf.tensors(state, config), "model.language_model.layers.0."
    assert torch.equal(made["blk.0.attn_norm.weight"], state[layer + "input_layernorm.weight"] + 1)
    assert torch.equal(made["blk.0.ssm_norm.weight"], state[layer + "linear_attn.norm.weight"])
    assert torch.equal(made["blk.0.ssm_a"], -state[layer + "linear_attn.A_log"].exp())


def test_the_fields_are_the_ports_dimensions():
    _, _, config = network()
    found = qwen3_5_gguf.fields(config, 512)
    assert found["qwen35.full_attention_interval"] == 4
    assert found["qwen35.ssm.inner_size"] == config.delta_v_heads * config.delta_v_dim
    assert found["qwen35.rope.dimension_sections"] == [2, 1, 1, 0]
    assert len(found["tokenizer.ggml.tokens"]) == len(found["tokenizer.ggml.token_type"]) == config.vocab


def test_what_llama_cpp_would_read_otherwise_is_refused():
    _, state, config = network()
    with pytest.raises(SetupError, match=r"no tensor for layers\.0\.new\.weight"):
        qwen3_5_gguf.tensors({**state, "model.layers.0.new.weight": torch.zeros(1)}, config)
    _, state, config = network(linear_num_key_heads=2)
    with pytest.raises(SetupError, match="orders the value heads"):
        qwen3_5_gguf.tensors(state, config)


def test_medians_stand_with_their_spread_and_their_ratio_to_ours():
    taken = {"ours": [Time(1.0, 4.0), Time(3.0, 4.0), Time(2.0, 4.0)], "theirs": [Time(4.0, 2.0)] * 3}
    lines = [" ".join(line.split()) for line in told("a token", taken)]
    assert lines == [
        "a token clock ours 2.0000 s [1.0000, 3.0000]",
        "a token clock theirs 4.0000 s [4.0000, 4.0000] 2.00 x [1.33, 4.00]",
        "a token processor ours 4.0000 s [4.0000, 4.0000]",
        "a token processor theirs 2.0000 s [2.0000, 2.0000] 0.50 x [0.50, 0.50]",
    ]
    assert told("a token", {"ours": [Time(1, 1)], "theirs": [Time(2, 2)]})[1].endswith("2.00 x")  # one has no interval


@pytest.mark.nightly
def test_llama_cpp_says_the_same_greedy_tokens(tmp_path):
    model, state, config = network()
    context = 256
    tensors, fields = qwen3_5_gguf.tensors(state, config), qwen3_5_gguf.fields(config, context)
    (file,) = llama_cpp.write(tmp_path, fields, tensors, ["F32"])
    size = {"context": context, "context_at_once": context, "slots": 2, "batch": 64, "ubatch": 64}
    process = llama_cpp.LlamaCpp(file, threads=1, cache="F32", **size)
    prompts = [[(7 * i + 3 * row) % 440 for i in range(40)] for row in range(2)]
    ids = torch.tensor(prompts)
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    theirs = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[:, ids.shape[1] :].tolist()
    try:
        assert process.ask(prompts[:1], 8).tokens == theirs[:1]
        assert process.ask(prompts, 8).tokens == theirs
    finally:
        process.close()
