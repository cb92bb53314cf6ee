"""Qwen3.5 at the dimensions of its 0.8B, with seeded random weights, beside transformers' `generate` in one process.

    python -m perf.qwen3_5_speed [--dtype float32] [--layers 24] [--repeats 3]

Three questions, each asked of both sides in turn: output tokens a second of one request, of sixteen (transformers one
after another, ours at once), and the time to the first token of a long prompt. Prints medians and their ratios, by the
clock and by the processor time of this process: on a machine that others use, with one thread, the second is the one
that says something.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor
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
    """Seconds: by the clock, and of this process on all cores."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Time:
        return cls(time.perf_counter(), time.process_time())

    def since(self) -> Time:
        now = self.now()
        return Time(now.wall - self.wall, now.cpu - self.cpu)


class Ours:
    """The port behind the engine."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.engine, self.asked = Engine([loaded]), 0

    async def ask(self, prompt: str, new: int) -> None:
        self.asked += 1
        fields = {"max_tokens": new, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        task = Task("generate", {"text": prompt}, QwenTextKnobs.model_validate(fields))
        handle = await self.engine.submit(CARDS[0].key, task, request_id=str(self.asked))
        async for _ in handle:
            pass

    async def rate(self, rows: int, new: int) -> Time:
        """Of so many requests at once, for each of their tokens."""
        began, seed = Time.now(), self.asked
        await asyncio.gather(*(self.ask(text(PROMPT, seed + i), new) for i in range(rows)))
        return Time(*(one / (rows * new) for one in began.since()))

    async def first(self) -> Time:
        """Of a long prompt's first token."""
        began = Time.now()
        await self.ask(text(LONG, self.asked), 1)
        return began.since()


class Theirs:
    """transformers' greedy `generate`."""

    def __init__(self, model: Qwen3_5ForCausalLM, chat: ChatTokenizer) -> None:
        self.model, self.chat, self.asked = model, chat, 0

    def ask(self, count: int, new: int) -> Tensor:
        self.asked += 1
        ids = torch.tensor([self.chat.encode(text(count, self.asked))])
        options = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new, "pad_token_id": 0}
        return self.model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    def rate(self, new: int) -> Time:
        """Of one request, for each of its tokens."""
        began = Time.now()
        self.ask(PROMPT, new)
        return Time(*(one / new for one in began.since()))

    def first(self) -> Time:
        began = Time.now()
        self.ask(LONG, 1)
        return began.since()


def told(name: str, ours: list[Time], theirs: list[Time]) -> None:
    """One line: seconds of both sides, and how many times theirs is ours."""
    for what, place in (("clock", 0), ("processor", 1)):
        mine, other = (statistics.median(one[place] for one in side) for side in (ours, theirs))
        print(
            f"{name:24} {what:10} ours {mine:8.3f} s   transformers {other:8.3f} s   {other / mine:5.2f} x", flush=True
        )


async def measure(ours: Ours, theirs: Theirs, repeats: int, new: int, long: int) -> None:
    """Both sides in turn, after a short round of each that is not counted."""
    await ours.engine.start()
    try:
        await ours.ask(text(8, 999), 2)
        theirs.ask(8, 2)
        alone: list[Time] = []
        together: list[Time] = []
        after: list[Time] = []
        for _ in range(repeats):
            alone.append(await ours.rate(1, new))
            after.append(theirs.rate(new))
            told("one request, a token", alone, after)
            together.append(await ours.rate(ROWS, new))
            told("sixteen, a token", together, after)
        firsts = [(await ours.first(), theirs.first()) for _ in range(long)]
        if firsts:
            told(f"first of {LONG} tokens", [one for one, _ in firsts], [one for _, one in firsts])
    finally:
        await ours.engine.stop()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    asked.add_argument("--layers", type=int, default=24)
    asked.add_argument("--repeats", type=int, default=3)
    asked.add_argument("--new", type=int, default=48, help="tokens of an answer")
    asked.add_argument("--long", type=int, default=1, help="repeats of the long prompt")
    given = asked.parse_args()
    dtype = getattr(torch, given.dtype)
    model = reference(given.layers, dtype)
    loaded = port(model, given.layers, dtype)
    print(f"{given.dtype}, {given.layers} layers, {torch.get_num_threads()} threads", flush=True)
    made: Any = loaded.model
    asyncio.run(measure(Ours(loaded), Theirs(model, made.tokenizer), given.repeats, given.new, given.long))


if __name__ == "__main__":
    main()
