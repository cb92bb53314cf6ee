"""Qwen3.5 on the core: one decoder node over paged keys, recurrent state in slots, positions on three axes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.components.layers.deltanet import Recurrence
from models.components.layers.spans import Spans
from models.components.text.answer import ChatAnswer
from models.components.text.conversation import ChatTokenizer
from models.components.text.decoder import PROCESSED, RAW, Decoder, Turn
from models.components.text.detokenize import Vocabulary
from models.components.text.grammar import Grammars
from models.components.text.reasoning import Reasoning
from models.components.text.tool_calls import ToolCalls, XmlMarkup
from models.qwen3_5 import media
from models.qwen3_5.config import FULL, LINEAR, Qwen35Config
from models.qwen3_5.modules import Qwen35
from models.qwen3_5.request import QwenChatKnobs, QwenTextKnobs
from serving.core.contract import Batch, Edge, Graph, Need, Options, Packed, Piece, Prefix, Resource, Steps, Task
from serving.core.streams import Available, Each
from serving.errors import BadRequest
from serving.resources import PagedKV, Positions, Sampler, StateSlots

EDGES = (Edge("decoder.text", "client.text", Available()), Edge("decoder.info", "client.info", Each()))
WALKS = {"answer": ("decoder",)}
CONTEXT = 8192  # tokens of a request where a deployment sets no other `context`
BUDGET = 512  # tokens a step: what a chunk of a prompt may hold back the rows that speak
PAGE = 64
EXPECTED = 128  # tokens of an answer for which room is made at admission, where the pool admits what is expected
SNAPSHOTS = 16  # recurrent states kept for prompts that begin alike, where a deployment gives no bytes


@dataclass(frozen=True, slots=True)
class Job:
    """A prepared request."""

    turn: Turn
    marks: tuple[int, ...]


class Qwen35Port:
    """The port: `serving.core.contract.Model`."""

    def __init__(self, config: Qwen35Config, net: Qwen35, tokenizer: ChatTokenizer, options: Options) -> None:
        self.config, self.net, self.tokenizer = config, net, tokenizer
        self.modules: dict[str, nn.Module] = {"qwen3_5": net}
        self.context = min(config.context, int(options.model.get("context", CONTEXT)))
        self.paged = {layer: place for place, layer in enumerate(config.of(FULL))}  # where its keys are kept
        self.exact = options.numerics == "invariant"
        self.vocabulary = Vocabulary.of(tokenizer.backend, config.vocab)
        self.grammars = Grammars(tokenizer.backend, self.vocabulary, tokenizer.end)
        self.markup = XmlMarkup()
        self.ends = frozenset((*config.ends, tokenizer.end))
        sampler = Sampler(slots=options.rows, vocab=config.vocab, device=options.device)
        positions = Positions(slots=options.rows, axes=len(config.sections))
        resources = _caches(config, net.dtype, self.context, options) | {"sampler": sampler, "positions": positions}
        node = Decoder(
            self.run,
            net.lm_head,
            self.vocabulary,
            sampler,
            positions,
            rows=options.rows,
            budget=int(options.model.get("budget", BUDGET)),
            device=options.device,
            more=("state",),
            captured=options.capture == "static",
        )
        self.graph = Graph({node.name: node}, EDGES, resources, WALKS)

    def run(self, ids: Tensor, b: Batch) -> Tensor:
        """Hidden rows [T, D] of a step."""
        kv, recur = b.use["kv"], Recurrence(b.use["state"], Spans.of(b), self.exact)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return kv.attend(self.paged[layer], q, k, v)

        return self.net(ids, b.use["positions"], attend, recur)

    def prepare(self, task: Task) -> Job:
        """Messages to tokens, knobs to what the node needs."""
        knobs: QwenChatKnobs | QwenTextKnobs = task.knobs
        prompt, grammar = media.prompt_of(task, self.tokenizer), None
        if isinstance(knobs, QwenChatKnobs):
            grammar = knobs.grammar(self.markup, thinking=prompt.thinking)
            if grammar is not None:
                self.grammars.check(grammar, "tools" if knobs.offered else "response_format")
        if any(token >= self.config.vocab for token in map(int, knobs.logit_bias)):
            raise BadRequest(f"Token ids end at {self.config.vocab - 1}.", param="logit_bias")
        wanted = knobs.logprobs if isinstance(knobs, QwenChatKnobs) else knobs.return_logprobs
        ids = {"prompt_token_ids": prompt.ids.tolist()} if knobs.return_token_ids else {}
        turn = Turn(
            prompt=prompt.ids,
            limit=media.limit_of(knobs, len(prompt.ids), self.context),
            ends=frozenset() if knobs.ignore_eos else self.ends,
            params=knobs.sampling(),
            answer=partial(self._answer, knobs, prompt.thinking),
            constraint=None if grammar is None else partial(self.grammars.begin, grammar),
            logprobs=0 if not wanted else PROCESSED if knobs.logprobs_mode == "processed" else RAW,
            top=knobs.top_logprobs,
            facts={"input_tokens": len(prompt.ids), **ids},
        )
        return Job(turn, prompt.marks)

    def _answer(self, knobs: QwenChatKnobs | QwenTextKnobs, thinking: bool) -> ChatAnswer:
        """A conversation's answer has thoughts and calls in it; a text is all text."""
        chat = isinstance(knobs, QwenChatKnobs)
        tools = knobs.callable if isinstance(knobs, QwenChatKnobs) else {}
        return ChatAnswer(
            self.vocabulary,
            stops=knobs.stop,
            reasoning=Reasoning(thinking) if chat else None,
            calls=ToolCalls(self.markup, tools) if tools else None,
            token_ids=knobs.return_token_ids,
        )

    def in_flight(self, job: Job) -> int:
        return 1

    def pieces(self, job: Job) -> Steps:
        """One piece. Its prompt may begin as an earlier one did, up to the end of a message."""
        turn = job.turn
        prefix = Prefix("decoder", {"main": turn.prompt}, take=("prompt",), grows="tokens", marks=job.marks)
        yield Piece(
            "answer",
            {"decoder.prompt": Packed.one(turn.prompt)},
            turn,
            needs={"kv": Need(len(turn.prompt) + turn.limit, expected=len(turn.prompt) + min(turn.limit, EXPECTED))},
            prefix=prefix,
        )

    def present(self, port: str, items: Packed) -> Any:
        return media.shown(port, items)


def _caches(config: Qwen35Config, dtype: torch.dtype, context: int, options: Options) -> dict[str, Resource]:
    """Pages for the full-attention layers, slots for the others; both keep what prompts that begin alike share."""
    page = int(options.resources.get("kv", {}).get("page_size", PAGE))
    sizes = {"pages": options.rows * -(-context // page)} | dict(options.resources.get("kv", {})) | {"page_size": page}
    tables = config.delta.tables(config.of(LINEAR), dtype)
    state = sum(int(np.prod(shape)) * kind.itemsize for shape, kind in tables.values())
    kept = {"snapshots": SNAPSHOTS * state} | dict(options.resources.get("state", {}))
    return {
        "kv": PagedKV(
            layers=len(config.of(FULL)),
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            slots=options.rows,
            max_len=context,
            dtype=dtype,
            device=options.device,
            numerics=options.numerics,
            **sizes,
        ),
        "state": StateSlots(slots=options.rows, state=tables, device=options.device, stride=1, **kept),
    }
