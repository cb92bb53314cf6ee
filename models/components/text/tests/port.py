"""A chat port small enough to read: the next token depends on the last one alone, by a random table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from models.components.text.answer import ChatAnswer, described
from models.components.text.chat import ChatKnobs, TextKnobs
from models.components.text.detokenize import Vocabulary
from models.components.text.grammar import Grammars
from models.components.text.reasoning import Reasoning
from models.components.text.tests import words
from models.components.text.tool_calls import JsonMarkup, ToolCalls, Tools
from models.components.text.writer import Writer, joined
from serving.core.contract import (
    Card,
    Edge,
    Graph,
    LoadedModel,
    Node,
    Offer,
    Options,
    Packed,
    Piece,
    Settled,
    Verdict,
)
from serving.core.streams import Available, Whole
from serving.resources import Sampler

CARD = Card(
    "parrot",
    "fake",
    "Chats at random",
    {"chat": ChatKnobs, "generate": TextKnobs},
    "Apache-2.0",
    "recipe",
    experimental=False,
)
EDGES = (
    Edge("client.prompt", "lm.prompt", Whole()),
    Edge("lm.text", "client.text", Available()),
    Edge("lm.info", "client.info", Available()),
)
DECODE, CAREFUL = Offer(("lm",), repeats=True), Offer(("lm",))
MARKUP = JsonMarkup()


@dataclass(frozen=True, slots=True)
class Job:
    """A prepared conversation."""

    knobs: ChatKnobs | TextKnobs
    prompt: np.ndarray
    logprobs: bool
    tools: Tools
    grammar: str | None = None
    thinking: bool = False


class Table(Node):
    """Prompt in, answer out. A constrained row waits for each token before it offers the next step."""

    name, writes = "lm", ("sampler",)

    def __init__(self, parrot: Parrot, rows: int) -> None:
        self.parrot = parrot
        size = len(parrot.vocabulary)
        self.table = torch.randn(size, size, generator=torch.Generator().manual_seed(0)) * 2
        said = [bool(piece) for piece in parrot.vocabulary.pieces]
        self.table[:, ~torch.tensor(said)] = -torch.inf
        self.table[:, words.end()] = 2.0
        self.last = torch.zeros(rows + 1, dtype=torch.int64)

    def begin(self, row):
        job, knobs = row.knobs, row.knobs.knobs
        vocabulary, sampler = self.parrot.vocabulary, self.parrot.sampler
        sampler.set(row.slot, knobs.sampling(), row.seed, prompt=job.prompt.tolist())
        self.last[row.slot] = int(job.prompt[-1])
        row.state = Writer(
            ChatAnswer(
                vocabulary,
                stops=knobs.stop,
                reasoning=Reasoning(inside=job.thinking),
                calls=ToolCalls(MARKUP, job.tools) if job.tools else None,
                token_ids=knobs.return_token_ids,
            ),
            {words.end()},
            knobs.max_tokens or 200,
            None if job.grammar is None else self.parrot.grammars.begin(job.grammar),
        )
        row.state.begin(sampler, row.slot)

    def offer(self, row):
        prompt = row.chunks["prompt"]
        if prompt is not None:
            return Offer(("lm",), prompt.stop, prompt.stop, take=("prompt",))
        return DECODE if row.state.constraint is None else CAREFUL

    def launch(self, b):
        logits = self.table[self.last[b.slots]]
        tokens = b.use["sampler"](logits)
        self.last[b.slots] = tokens
        if any(row.knobs.knobs.logprobs_mode == "processed" for row in b.rows):
            logits = b.use["sampler"].process(logits)  # one mode for all rows: enough here
        logprobs = logits.log_softmax(-1)
        top = logprobs.topk(5)
        return {"token": tokens, "logprob": logprobs.gather(1, tokens[:, None])[:, 0], "ids": top[1], "top": top[0]}

    def settle(self, b, out):
        sampler, deltas, infos = self.parrot.sampler, [], []
        counts = np.zeros((2, b.n), np.int64)
        done = np.zeros(b.n, bool)
        for i, row in enumerate(b.rows):
            job, writer, token = row.knobs, row.state, int(out["token"][i])
            logprob = None
            if job.logprobs:
                pairs = list(zip(out["ids"][i].tolist(), out["top"][i].tolist(), strict=True))[: job.knobs.top_logprobs]
                logprob = described(self.parrot.vocabulary, token, float(out["logprob"][i]), pairs)
            done[i] = writer.take(token, sampler, row.slot, logprob)
            made = writer.taken()
            deltas += made
            counts[0, i] = len(made)
            if done[i]:
                counts[1, i] = 1
                ids = {"prompt_token_ids": job.prompt.tolist()} if job.knobs.return_token_ids else {}
                infos.append(writer.info(input_tokens=len(job.prompt), **ids))
        emits = {"text": Packed(deltas, counts[0]), "info": Packed(infos, counts[1])}
        return Settled(Verdict.until(done), emits)


class Parrot:
    """The port: `serving.core.contract.Model`."""

    def __init__(self, rows: int = 4) -> None:
        self.vocabulary = Vocabulary.of(words.tokenizer(), 450)
        self.grammars = Grammars(words.tokenizer(), self.vocabulary, words.end())
        self.sampler = Sampler(slots=rows, vocab=len(self.vocabulary))
        self.modules: dict[str, Any] = {}
        node = Table(self, rows)
        self.graph = Graph({"lm": node}, EDGES, {"sampler": self.sampler}, {"chat": ("lm",)})

    def prepare(self, task):
        knobs = task.knobs
        if task.kind == "generate":
            return Job(knobs, np.array(words.encode(task.inputs["text"])), knobs.return_logprobs, {})
        thinking = bool(knobs.enable_thinking)
        grammar = knobs.grammar(MARKUP, thinking=thinking)
        if grammar is not None:
            self.grammars.check(grammar, "response_format")
        shown = json.dumps([task.inputs["messages"], knobs.offered], default=str)
        return Job(knobs, np.array(words.encode(shown)), knobs.logprobs, knobs.callable, grammar, thinking)

    def in_flight(self, job):
        return 1

    def pieces(self, job):
        yield Piece("chat", {"lm.prompt": Packed.one(job.prompt)}, job)

    def present(self, port, items):
        if port == "info":
            return items.values[0]
        return joined(items.values)


def loaded(rows: int = 4) -> LoadedModel:
    return LoadedModel(CARD, Options(rows=rows), Parrot(rows))
