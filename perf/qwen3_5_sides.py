"""Who answers in `perf.qwen3_5_speed`: ours behind the engine, transformers' `generate`, llama.cpp; all on one network.

The network has the dimensions of Qwen3.5's 0.8B and seeded random weights.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast, Qwen3_5ForCausalLM
from transformers.initialization import no_init_weights
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig

from models.components.text.conversation import ChatTokenizer
from models.qwen3_5 import CARDS
from models.qwen3_5.config import from_json
from models.qwen3_5.graph import Qwen35Port
from models.qwen3_5.modules import Qwen35
from models.qwen3_5.request import QwenTextKnobs
from models.qwen3_5.weights import from_transformers
from models.weights.loading import load_strict, on_meta
from perf.peers import llama_cpp, qwen3_5_gguf
from serving.core.contract import LoadedModel, Options, Task
from serving.core.engine import Engine

DIMS: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 262_144,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
}
ROWS, PROMPT, LONG = 16, 32, 2000


def reference(layers: int, dtype: torch.dtype) -> Qwen3_5ForCausalLM:
    config = Qwen3_5TextConfig(**DIMS, num_hidden_layers=layers)
    with no_init_weights():
        model: Any = Qwen3_5ForCausalLM(config)
    model.tie_weights()
    model = model.to(dtype).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.dim() > 1:
            scale = 0.02 if "embed" in name else parameter[0].numel() ** -0.5
            parameter.uniform_(-(3**0.5) * scale, 3**0.5 * scale, generator=generator)
        else:
            parameter.fill_(1.0 if "linear_attn.norm" in name else 0.0)
    return model


def tokenizer(folder: Path) -> ChatTokenizer:
    """A token a byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["<|im_end|>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=made)
    fast.chat_template = "{{ messages }}"
    fast.save_pretrained(folder)
    return ChatTokenizer(folder)


def port(model: Qwen3_5ForCausalLM, layers: int, dtype: torch.dtype) -> LoadedModel:
    """Ours with the reference's weights."""
    config = from_json({**DIMS, "num_hidden_layers": layers})
    tensors = from_transformers(dict(model.state_dict()), config)
    net = load_strict(on_meta(lambda: Qwen35(config)), tensors, dtype=dtype).eval()
    options = Options(rows=ROWS, model={"context": 4096})
    with tempfile.TemporaryDirectory() as folder:
        return LoadedModel(CARDS[0], options, Qwen35Port(config, net, tokenizer(Path(folder)), options))


def text(count: int, seed: int) -> str:
    """So many tokens, different ones for each seed."""
    return "".join(chr(97 + (i * 7 + seed * 11 + i * i % 5) % 26) for i in range(count))


class Time(NamedTuple):
    """Seconds: by the clock, and of the side's process on all cores."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Time:
        return cls(time.perf_counter(), time.process_time())

    def since(self) -> Time:
        now = self.now()
        return Time(now.wall - self.wall, now.cpu - self.cpu)

    def over(self, count: int) -> Time:
        return Time(self.wall / count, self.cpu / count)


class Side(Protocol):
    """`at_once`: takes several requests together; the others' rate is that of one request after another."""

    name: str
    at_once: bool

    async def said(self, prompt: str, new: int) -> list[int]:
        """Its greedy tokens."""

    async def rate(self, rows: int, new: int) -> Time:
        """Of so many requests at once, for each of their tokens."""

    async def first(self) -> Time:
        """Of a long prompt's first token."""


class Here(Side):
    """A side in this process."""

    asked = 0

    async def first(self) -> Time:
        began = Time.now()
        await self.said(text(LONG, self.asked), 1)
        return began.since()


class Ours(Here):
    """The port behind the engine."""

    name, at_once = "ours", True

    def __init__(self, loaded: LoadedModel) -> None:
        self.engine = Engine([loaded])

    async def said(self, prompt: str, new: int) -> list[int]:
        self.asked += 1
        fields = {"max_tokens": new, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        task = Task("generate", {"text": prompt}, QwenTextKnobs.model_validate(fields))
        handle = await self.engine.submit(CARDS[0].key, task, request_id=str(self.asked))
        return [token async for output in handle if output.port != "info" for token in output.value.token_ids]

    async def rate(self, rows: int, new: int) -> Time:
        began, seed = Time.now(), self.asked
        await asyncio.gather(*(self.said(text(PROMPT, seed + i), new) for i in range(rows)))
        return began.since().over(rows * new)


class Theirs(Here):
    """transformers' greedy `generate`, one request after another."""

    name, at_once = "transformers", False

    def __init__(self, model: Qwen3_5ForCausalLM, chat: ChatTokenizer) -> None:
        self.model, self.chat = model, chat

    async def said(self, prompt: str, new: int) -> list[int]:
        self.asked += 1
        ids = torch.tensor([self.chat.encode(prompt)])
        options = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new, "pad_token_id": 0}
        return self.model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, ids.shape[1] :].tolist()

    async def rate(self, rows: int, new: int) -> Time:
        began = Time.now()
        for _ in range(rows):
            await self.said(text(PROMPT, self.asked), new)
        return began.since().over(rows * new)


class Llama:
    """llama.cpp in a process of its own, whose times are its own; it gets ids."""

    at_once = True

    def __init__(self, kind: str, file: Path, chat: ChatTokenizer, new: int) -> None:
        self.name, self.chat, self.asked = f"llama.cpp {kind}", chat, 0
        self.process = llama_cpp.LlamaCpp(
            file,
            threads=torch.get_num_threads(),
            batch=2048,
            ubatch=512,
            slots=ROWS,
            context=_page(LONG),
            context_at_once=_page(PROMPT + new),
            cache="F32" if kind == "F32" else "F16",
        )

    async def said(self, prompt: str, new: int) -> list[int]:
        return self._ask([prompt], new).tokens[0]

    async def rate(self, rows: int, new: int) -> Time:
        return self._time([text(PROMPT, self.asked + i) for i in range(rows)], new).over(rows * new)

    async def first(self) -> Time:
        return self._time([text(LONG, self.asked)], 1)

    def _time(self, prompts: Sequence[str], new: int) -> Time:
        made = self._ask(prompts, new)
        return Time(made.seconds, made.cpu)

    def _ask(self, prompts: Sequence[str], new: int) -> llama_cpp.Answers:
        self.asked += len(prompts)
        return self.process.ask([self.chat.encode(prompt) for prompt in prompts], new)


def _page(tokens: int) -> int:
    """llama.cpp pads a context to multiples of 256."""
    return -(-(tokens + 1) // 256) * 256


def gguf(folder: Path, model: Qwen3_5ForCausalLM, layers: int, kinds: Sequence[str]) -> list[Path]:
    """The network's files for llama.cpp."""
    config = from_json({**DIMS, "num_hidden_layers": layers})
    tensors = qwen3_5_gguf.tensors(dict(model.state_dict()), config)
    return llama_cpp.write(folder, qwen3_5_gguf.fields(config, _page(LONG)), tensors, kinds)
