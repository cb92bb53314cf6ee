"""Checkpoints in the real layouts: everything is used, nothing is missing, and real sizes have the real counts."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5ForCausalLM
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

from models.qwen3_5 import CARDS, load, weights
from models.qwen3_5.config import from_json
from models.qwen3_5.modules import Qwen35
from models.qwen3_5.tests import tiny
from models.weights.loading import load_strict, on_meta
from serving.core.contract import Options
from serving.errors import SetupError

# hidden, intermediate, layers, heads, kv heads, DeltaNet value heads, tied; the millions of parameters of the language
# model, as these sizes give it, and as others published it of their conversions, which count a little else beside.
# The dimensions of 0.8B, 9B and 27B are in public configurations, those of 4B in part. Of 2B only the count could be
# checked, and of 3.8-27B nothing but that it is of the same class.
REAL = {
    "qwen3_5_0p8b": (1024, 3584, 24, 8, 2, 16, True, 752, 758),
    "qwen3_5_2b": (2048, 6144, 24, 8, 2, 16, True, 1882, 1890),
    "qwen3_5_4b": (2560, 9216, 32, 16, 4, 32, True, 4206, 4210),
    "qwen3_5_9b": (4096, 12288, 32, 16, 4, 32, False, 8954, 8960),
    "qwen3_5_27b": (5120, 17408, 64, 24, 4, 48, False, 26896, 26900),
    "qwen3_8_27b": (5120, 17408, 64, 24, 4, 48, False, 26896, 26900),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("checkpoint"))


def filled(config, tensors):
    return load_strict(on_meta(lambda: Qwen35(config)), tensors, dtype=torch.float32)


def test_every_tensor_of_the_whole_family_is_used(folder):
    config, tensors = weights.read(folder)
    net = filled(config, tensors)
    assert config.layers.count("full_attention") == 1
    assert net.lm_head.weight is net.embed_tokens.weight
    assert sum(p.numel() for p in net.parameters()) == sum(
        p.numel() for name, p in tiny.reference().named_parameters() if "visual" not in name
    )


@pytest.mark.parametrize("tied", [True, False])
def test_the_language_model_alone_has_the_same_tensors(folder, tmp_path, tied):
    whole = tiny.reference(tied=tied)
    config = whole.config.text_config
    config.tie_word_embeddings = tied
    alone = Qwen3_5ForCausalLM(config)
    alone.model.load_state_dict(whole.model.language_model.state_dict())
    alone.lm_head.load_state_dict(whole.lm_head.state_dict())
    alone.save_pretrained(tmp_path / "alone")
    tiny.save(tmp_path / "whole", whole)
    nets = [filled(*weights.read(tmp_path / name)).state_dict() for name in ("alone", "whole")]
    assert nets[0].keys() == nets[1].keys()
    assert all(torch.equal(nets[0][name], nets[1][name]) for name in nets[0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop("model.language_model.layers.3.self_attn.k_proj.weight"), "self_attn.qkv.weight"),
        (lambda t: t.pop("model.language_model.layers.0.linear_attn.A_log"), "A_log"),
        (lambda t: t.update({"model.language_model.layers.0.mlp.bias": torch.zeros(3)}), "left over.*mlp.bias"),
        (lambda t: t.update({"model.language_model.norm.weight": torch.zeros(3)}), "norm.weight is"),
    ],
)
def test_a_checkpoint_that_does_not_fit_says_where(folder, change, said):
    config, _ = weights.read(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    with pytest.raises(SetupError, match=said):
        filled(config, weights.from_transformers(tensors, config))


def test_the_prediction_head_is_left_out_by_name(folder):
    config, tensors = weights.read(folder)
    more = {**load_file(folder / "model.safetensors"), "mtp.fc.weight": torch.zeros(2, 2)}
    assert weights.from_transformers(more, config).keys() == tensors.keys()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "qwen3_5_moe"}, "qwen3_5_moe"),
        ({"text_config": {"attention_bias": True}}, "attention_bias"),
        ({"text_config": {"hidden_act": "gelu"}}, "hidden_act"),
        ({"text_config": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}}, "yarn"),
        ({"text_config": {"layer_types": ["sliding_attention"] * 4}}, "sliding_attention"),
    ],
)
def test_what_this_port_does_not_compute_is_refused(folder, change, said):
    config = json.loads((folder / "config.json").read_text())
    text = {**config["text_config"], **change.pop("text_config", {})}
    with pytest.raises(SetupError, match=said):
        from_json({**config, **change, "text_config": text})


def real(key):
    """The text configuration of a key."""
    hidden, inner, layers, heads, kv_heads, values, tied, *_ = REAL[key]
    return {
        **tiny.TEXT,
        "model_type": "qwen3_5_text",
        "vocab_size": 248_320,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": values,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "mrope_section": [11, 11, 10]},
        "tie_word_embeddings": tied,
        "output_gate_type": "swish",
    }


@pytest.mark.parametrize("key", sorted(REAL))
def test_real_dimensions_have_the_real_count(key):
    *_, millions, published = REAL[key]
    net = on_meta(lambda: Qwen35(from_json(real(key))))
    assert round(sum(p.numel() for p in net.parameters()) / 1e6) == millions
    assert millions == pytest.approx(published, rel=0.01)
    assert net.rotary.inv_freq.shape == (32,)


@pytest.mark.parametrize("key", sorted(REAL))
def test_real_dimensions_have_the_references_tensors(key):
    """Names and shapes of the reference's own model of that size, each used once and none missing."""
    text = real(key)
    config = from_json(text)
    given = {n: v for n, v in text.items() if n not in ("model_type", "output_gate_type")}
    with torch.device("meta"):
        reference = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**given))
    tensors = weights.from_transformers(reference.state_dict(), config)
    ours = on_meta(lambda: Qwen35(config)).state_dict()
    assert {n: t.shape for n, t in tensors.items()} == {n: t.shape for n, t in ours.items()}


def test_a_key_without_a_folder_or_with_an_unknown_dtype_says_so(folder):
    with pytest.raises(SetupError, match=r"Qwen/Qwen3\.5-0\.8B"):
        load(CARDS[0], Options())
    with pytest.raises(SetupError, match="bfloat16"):
        load(CARDS[0], Options(weights=str(folder), model={"dtype": "bfloat"}))


def test_a_folder_without_a_chat_template_is_refused(folder, tmp_path):
    save_file(load_file(folder / "model.safetensors"), tmp_path / "model.safetensors")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    with pytest.raises(SetupError, match="no chat template"):
        load(CARDS[0], Options(weights=str(tmp_path)))
