"""The node of a chat model: the prompt in any chunks, then a token a step, among others' prompts and tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.components.text.answer import ChatAnswer, described
from models.components.text.detokenize import Vocabulary
from models.components.text.grammar import Constraint
from models.components.text.writer import Writer
from serving.core.contract import Batch, Delta, Node, Offer, Packed, Row, Settled, TokenLogprob, Verdict
from serving.resources import Positions, Sampler, SamplingParams

STEP, DECODE = Offer(("step",)), Offer(("step",), repeats=True)
RAW, PROCESSED = 1, 2  # log-probabilities before and after the sampler's operations


@dataclass(frozen=True, slots=True)
class Turn:
    """A piece's knobs: the prompt, how a token is chosen, where the answer ends."""

    prompt: np.ndarray  # [T] int64 token ids
    limit: int  # most tokens to choose
    ends: frozenset[int]
    params: SamplingParams
    answer: Callable[[], ChatAnswer]
    constraint: Callable[[], Constraint] | None = None
    logprobs: int = 0  # RAW, PROCESSED or neither
    top: int = 0  # likeliest tokens to tell beside each chosen one
    positions: np.ndarray | None = None  # [axes, T] of the prompt, where they are not 0, 1, 2, ...
    facts: Mapping[str, Any] = field(default_factory=dict)  # for the port "info", beside those of the answer


class Decoder(Node):
    """Port "prompt" in; out: "tokens" (ids), "text" (`Delta`s) and, at the end, "info".

    `run(ids [T], batch)` gives hidden rows [T, D] and writes what its resources keep; `head` makes logits of rows.
    The resources' labels are "kv", "sampler", "positions" and what `more` names. `captured`: steps have few sizes.
    """

    name, preempt, tables = "decoder", "recompute", ("last", "wants")

    def __init__(
        self,
        run: Callable[[Tensor, Batch], Tensor],
        head: Callable[[Tensor], Tensor],
        vocabulary: Vocabulary,
        sampler: Sampler,
        positions: Positions,
        *,
        rows: int,
        budget: int,
        device: str,
        more: tuple[str, ...] = (),
        captured: bool = False,
    ) -> None:
        self.run, self.head, self.vocabulary = run, head, vocabulary
        self.sampler, self.positions, self.budget = sampler, positions, float(budget)
        self.writes = ("kv", *more, "sampler", "positions")
        self.buckets = _buckets(rows, budget) if captured else ()
        self.last = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self.wants = np.zeros((rows + 1, 2), np.int64)  # log-probabilities of each slot: which, and how many more

    def begin(self, row: Row) -> None:
        turn: Turn = row.knobs
        row.state = Writer(turn.answer(), turn.ends, turn.limit, turn.constraint() if turn.constraint else None)
        self.sampler.set(row.slot, turn.params, row.seed, prompt=turn.prompt.tolist())
        self.wants[row.slot] = turn.logprobs, turn.top
        if turn.positions is not None:
            self.positions.set(row.slot, turn.positions)
        row.state.begin(self.sampler, row.slot)

    def offer(self, row: Row) -> Offer | None:
        prompt = row.chunks["prompt"]
        if prompt is not None:
            return Offer(("step",), prompt.stop - prompt.fresh, 1, take=("prompt",))
        if not row.ended["prompt"]:
            return None
        return DECODE if row.state.constraint is None else STEP

    def stage(self, b: Batch) -> None:
        if "prompt" not in b.ins:
            return
        ids = b.buffer("ids", (b.total,), torch.int64)
        ids.fill_(-1)  # -1: the row's last token
        given = b.ins["prompt"]
        places = np.repeat(given.lengths > 0, b.units)
        ids[: len(places)][torch.from_numpy(places)] = torch.as_tensor(np.asarray(given.values))

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        kv = b.use["kv"]
        ids = self.last[b.slots[kv.token_rows]]
        if "prompt" in b.ins:
            ids = torch.where(b.buffers["ids"] < 0, ids, b.buffers["ids"])
        hidden = self.run(ids, b)
        if b.n and not _speaks(b).any():
            return {}
        logits = self.head(hidden[kv.last]).float()
        wants = self.wants[b.index]
        processed = b.use["sampler"].process(logits) if (wants[:, 0] == PROCESSED).any() else logits
        tokens = b.use["sampler"](logits)
        self.last[b.slots] = tokens
        return {"id": tokens} | (self._logprobs(b, wants, logits, processed, tokens) if wants[:, 0].any() else {})

    def _logprobs(
        self, b: Batch, wants: np.ndarray, logits: Tensor, processed: Tensor, tokens: Tensor
    ) -> dict[str, Tensor]:
        """Of the chosen tokens [size], and of the likeliest [size, k] with their ids."""
        late = torch.from_numpy(wants[:, 0] == PROCESSED).to(logits.device)
        rows = torch.where(late[:, None], processed[: b.n], logits[: b.n]).log_softmax(-1)
        top, ids = rows.topk(max(1, int(wants[:, 1].max())), -1)
        return {"logprob": rows.gather(1, tokens[: b.n, None])[:, 0], "top": top, "top_id": ids}

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        speaks = _speaks(b)
        done, made = np.zeros(b.n, bool), np.zeros(b.n, np.int64)
        deltas: list[Delta] = []
        facts: list[dict[str, Any]] = []
        tokens = out["id"][: b.n] if speaks.any() else np.zeros(b.n, np.int64)
        for i, token in enumerate(tokens.tolist()):
            row = b.rows[i]
            writer: Writer = row.state
            if not speaks[i] or writer.finish_reason is not None:  # in its prompt, or void: ended a step before
                speaks[i] = False
                continue
            done[i] = writer.take(token, self.sampler, row.slot, self._logprob(out, i, token, row.knobs))
            grown = writer.taken()
            made[i] = len(grown)
            deltas += grown
            if done[i]:
                facts.append(writer.info(**row.knobs.facts, cached_tokens=row.reused))
        emits = {
            "tokens": Packed(tokens[speaks], speaks.astype(np.int64)),
            "text": Packed(deltas, made),
            "info": Packed(facts, done.astype(np.int64)),
        }
        return Settled(Verdict.until(done), emits)

    def _logprob(self, out: Mapping[str, Any], i: int, token: int, turn: Turn) -> TokenLogprob | None:
        if not turn.logprobs:
            return None
        top = zip(out["top_id"][i, : turn.top].tolist(), out["top"][i, : turn.top].tolist(), strict=True)
        return described(self.vocabulary, token, float(out["logprob"][i]), top)


def _buckets(rows: int, budget: int) -> tuple[tuple[int, int], ...]:
    """Steps of one token a row by powers of two, then steps with prompts in them."""
    sizes = [n for n in (1, 2, 4, 8, 16, 32, 64) if n < rows]
    steps = [units for units in (64, 128, 256) if rows < units < budget]
    return (*((n, n) for n in (*sizes, rows)), *((rows, units) for units in (*steps, budget) if units > rows))


def _speaks(b: Batch) -> np.ndarray:
    """[n] bool: rows whose next token this step chooses, all but those in the middle of their prompt."""
    if "prompt" not in b.taken:
        return np.ones(b.n, bool)
    return np.array([chunk is None or chunk.final for chunk in b.taken["prompt"]])
