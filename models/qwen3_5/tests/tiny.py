"""A tiny checkpoint in the real layout: saved by transformers, with a tokenizer and a chat template made in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast, Qwen3_5Config, Qwen3_5ForConditionalGeneration

from models.components.text.tests import words
from models.qwen3_5 import CARDS, load
from models.qwen3_5.graph import Qwen35Port
from serving.core.contract import Card, Options

CARD: Card = CARDS[0]
VOCAB = 448
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
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
    "max_position_embeddings": 1024,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
    },
}
VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 64,
    "num_position_embeddings": 16,
}
TEMPLATE = """
{%- if tools %}<|im_start|>system
Tools:{% for tool in tools %} {{ tool | tojson }}{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages %}
{%- if message.role not in ["system", "user", "assistant", "tool"] %}
{{- raise_exception("no role " + message.role) }}
{%- endif -%}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments.items() %}<parameter={{ name }}>
{{ value }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% elif enable_thinking is defined %}<think>
{% endif %}{% endif %}"""


def reference(seed: int = 3, *, tied: bool = True, **text: Any) -> Qwen3_5ForConditionalGeneration:
    """transformers' model, every parameter from one generator: norms around their centre, decays apart."""
    config = Qwen3_5Config(
        text_config={**TEXT, "tie_word_embeddings": tied, **text}, vision_config=VISION, tie_word_embeddings=tied
    )
    model = Qwen3_5ForConditionalGeneration(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        scale = 0.2 if parameter.dim() == 1 else parameter[0].numel() ** -0.5
        centre = 1.0 if name.endswith("linear_attn.norm.weight") else 0.0
        parameter.normal_(centre, 0.25 if "embed_tokens" in name else scale, generator=generator)
    return model


def tokenizer() -> Tokenizer:
    """With the marks of the template, under ids below `VOCAB`."""
    made = Tokenizer.from_str(words.tokenizer().to_str())
    made.add_special_tokens(["<|im_start|>"])
    return made


def save(folder: Path, model: Qwen3_5ForConditionalGeneration | None = None) -> Path:
    """A checkpoint folder."""
    (model or reference()).save_pretrained(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), eos_token=words.END)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


def port(folder: Path, *, rows: int = 8, model: dict[str, Any] | None = None, **options: Any) -> Qwen35Port:
    """The port loaded from a checkpoint folder."""
    chosen = Options(weights=str(folder), rows=rows, model={"context": 512, **(model or {})}, **options)
    made = load(CARD, chosen)
    assert isinstance(made, Qwen35Port)
    return made
