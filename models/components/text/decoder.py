"""The node of a chat model: the prompt in any chunks, then a token a step, among others' prompts and tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.components.text.answer import ChatAnswer
from models.components.text.detokenize import Vocabulary
from models.components.text.grammar import Constraint
from serving.core.contract import Batch, Delta, Node, Offer, Packed, Row, Settled, TokenLogprob, Verdict
from serving.resources import Positions, Sampler, SamplingParams

STEP, DECODE = Offer(("step",)), Offer(("step",), repeats=True)
RAW, PROCESSED = 1, 2  # log-probabilities before and after the sampler's operations
Said = list[TokenLogprob | None]


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


@dataclass(slots=True)
class Speaker:
    """Where a row's answer stands."""

    turn: Turn
    answer: ChatAnswer
    constraint: Constraint | None
    reused: int = 0
    done: bool = False

    def take(self, token: int, logprob: TokenLogprob | None) -> list[Delta]:
        """What a chosen token adds to the answer; all that waited once it has ended."""
        turn, answer = self.turn, self.answer
        found = [answer.feed(token, logprob)]
        ended = token in turn.ends
        if self.constraint is not None and not ended:
            self.constraint.accept(token)
        self.done = ended or answer.stopped or answer.tokens >= turn.limit
        if self.done:
            found.append(answer.finish())
        return [delta for delta in found if delta != Delta()]

    def facts(self, last: int) -> dict[str, Any]:
        """Of the whole answer, whose last token is `last`."""
        return {
            "input_tokens": len(self.turn.prompt),
            "output_tokens": self.answer.tokens,
            "cached_tokens": self.reused,
            "reasoning_tokens": self.answer.reasoning_tokens,
            "finish_reason": self.answer.finish_reason(length=last not in self.turn.ends),
        }


@dataclass(slots=True)
class _Emits:
    """What a step says: items and how many each row has."""

    deltas: list[Delta] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)


class Decoder(Node):
    """Port "prompt" in; out: "tokens" (ids), "text" (`Delta`s) and, at the end, "info".

    `run(ids [T], batch)` gives hidden rows [T, D] and writes what its resources keep; `head` makes logits of rows.
    The resources' labels are "kv", "sampler", "positions" and what `more` names.
    """

    name = "decoder"

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
    ) -> None:
        self.run, self.head, self.vocabulary = run, head, vocabulary
        self.sampler, self.positions, self.budget = sampler, positions, float(budget)
        self.writes = ("kv", *more, "sampler", "positions")
        self.last = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self.wants = np.zeros((rows + 1, 2), np.int64)  # log-probabilities of each slot: which, and how many more

    def begin(self, row: Row) -> None:
        turn: Turn = row.knobs
        row.state = Speaker(turn, turn.answer(), turn.constraint() if turn.constraint else None)
        self.sampler.set(row.slot, turn.params, row.seed, prompt=turn.prompt.tolist())
        self.wants[row.slot] = turn.logprobs, turn.top
        if turn.positions is not None:
            self.positions.set(row.slot, turn.positions)
        self._constrain(row)

    def _constrain(self, row: Row) -> None:
        if row.state.constraint is not None:
            self.sampler.allow(row.slot, row.state.constraint.allowed())

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
        verdicts, speaks = np.full(b.n, Verdict.AGAIN), _speaks(b)
        counts = {port: np.zeros(b.n, np.int64) for port in ("text", "info")}
        emits, tokens = _Emits(), out["id"][: b.n] if speaks.any() else np.zeros(b.n, np.int64)
        ids = tokens.tolist()
        for i in np.flatnonzero(speaks).tolist():
            row = b.rows[i]
            if row.state.done:  # void: it ended in the step before
                speaks[i] = False
                continue
            deltas = row.state.take(ids[i], self._logprob(out, i, ids[i], row.knobs))
            emits.deltas += deltas
            counts["text"][i] = len(deltas)
            if row.state.done:
                row.state.reused = row.reused
                emits.facts.append(row.state.facts(ids[i]))
                verdicts[i], counts["info"][i] = Verdict.DONE, 1
            else:
                self._constrain(row)
        return Settled(
            verdicts,
            {
                "tokens": Packed(tokens[speaks], speaks.astype(np.int64)),
                "text": Packed(emits.deltas, counts["text"]),
                "info": Packed(emits.facts, counts["info"]),
            },
        )

    def _logprob(self, out: Mapping[str, Any], i: int, token: int, turn: Turn) -> TokenLogprob | None:
        if not turn.logprobs:
            return None
        pairs = zip(out["top_id"][i, : turn.top].tolist(), out["top"][i, : turn.top].tolist(), strict=True)
        top = tuple(TokenLogprob(other, self.vocabulary.shown(other), value) for other, value in pairs)
        return TokenLogprob(token, self.vocabulary.shown(token), float(out["logprob"][i]), top)


def _speaks(b: Batch) -> np.ndarray:
    """[n] bool: rows whose next token this step chooses, all but those in the middle of their prompt."""
    if "prompt" not in b.taken:
        return np.ones(b.n, bool)
    return np.array([chunk is None or chunk.final for chunk in b.taken["prompt"]])


def joined(deltas: list[Delta]) -> Delta:
    """Neighbouring deltas as one."""
    if len(deltas) == 1:
        return deltas[0]
    return Delta(
        "".join(delta.reasoning for delta in deltas),
        "".join(delta.text for delta in deltas),
        tuple(call for delta in deltas for call in delta.tool_calls),
        tuple(one for delta in deltas for one in delta.logprobs),
        tuple(token for delta in deltas for token in delta.token_ids),
    )
