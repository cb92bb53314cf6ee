"""transformers' Qwen3.5 text model on tiny random weights: taps, logits, positions on three axes, greedy tokens.

`tiny` keeps every tap of a prompt shorter than a chunk of the delta rule; `tiny_long` is an untied model of other head
counts, with a prompt of several chunks.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Qwen3_5ForCausalLM
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

from parity.harness import Spec, recipe_for
from parity.harness.record import Recording
from parity.harness.tokens import noise_floor

CASES = {
    "tiny": {
        "seed": 5,
        "prompt": 20,
        "text": {
            "model_type": "qwen3_5_text",
            "vocab_size": 320,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 4,
            "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 512,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": [2, 1, 1],
            },
        },
    },
    "tiny_long": {
        "seed": 6,
        "prompt": 150,
        "text": {
            "model_type": "qwen3_5_text",
            "vocab_size": 320,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_conv_kernel_dim": 4,
            "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
            "rms_norm_eps": 1e-6,
            "max_position_embeddings": 512,
            "tie_word_embeddings": False,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.25,
                "mrope_interleaved": True,
                "mrope_section": [2, 1, 1],
            },
        },
    },
}
NEW = 64
LOGIT_STRIDE = 7  # coprime to the vocabulary
GRID = 3  # an image of 3 x 3 places on two axes of position


def network(case: Recording) -> Qwen3_5ForCausalLM:
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**case.config["text"])).eval()
    text = case.config["text"]
    words = {"model.embed_tokens.weight": Spec((text["vocab_size"], text["hidden_size"]), scale=0.25)}
    recipe = recipe_for(model, case.config["seed"], overrides=words | quiet(model))
    case.recipe(recipe)
    model.load_state_dict(recipe.build())
    return model


def quiet(model: nn.Module) -> dict[str, Spec]:
    """Norms that keep weight - 1 scatter around zero, as trained ones do, and decays differ from head to head."""
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    norms = {n: Spec(s, scale=0.2) for n, s in shapes.items() if "norm.weight" in n and "linear_attn" not in n}
    decays = {n: Spec(s, mean=-0.5, scale=1.0) for n, s in shapes.items() if n.endswith(("A_log", "dt_bias"))}
    return norms | decays


def places(count: int) -> Tensor:
    """[3, T] positions of a prompt whose middle is an image: one moment, rows and columns; text goes on behind."""
    start, size = count // 3, GRID * GRID
    at = np.tile(np.arange(count), (3, 1))
    inside = np.arange(size)
    at[:, start : start + size] = start + np.stack([np.zeros(size, int), inside // GRID, inside % GRID])
    at[:, start + size :] -= size - GRID
    return torch.from_numpy(at)


def greedy(model: Qwen3_5ForCausalLM, ids: Tensor) -> list[int]:
    """The reference's own cached generation, never ending early."""
    options = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW}
    found = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
    return [int(token) for token in found[0, ids.shape[1] :]]


def record(case: Recording) -> None:
    model, count = network(case), case.config["prompt"]
    words = np.random.Philox(case.config["seed"] + 1).random_raw(count)
    ids = torch.from_numpy((words % np.uint64(case.config["text"]["vocab_size"])).astype(np.int64))[None]
    positions = places(count)
    case.inputs(ids=ids[0], positions=positions)
    stride = 1 if case.name == "tiny" else LOGIT_STRIDE
    if case.name == "tiny":
        with case.taps(model.model):
            logits = model(ids).logits
    else:
        logits = model(ids).logits
    case.outputs(stride=stride, logits=logits[0])
    case.outputs(stride=stride, placed=model(ids, position_ids=positions[:, None]).logits[0])
    said = greedy(model, ids)
    whole = torch.cat([ids, torch.tensor([said])], 1)
    forced = model(whole).logits[0]
    case.values["tokens"] = said
    case.outputs(logprobs=forced[count - 1 : -1].log_softmax(-1).gather(1, torch.tensor(said)[:, None])[:, 0])
    alone = [model(whole[:, : n + 1]).logits[0, -1:] for n in range(count)]
    case.values["noise"] = noise_floor(forced[:count], torch.cat(alone))
