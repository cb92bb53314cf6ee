"""One chat answer between a sampler and its client: what a decoding node keeps for a row."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from models.components.text.answer import NOTHING, ChatAnswer
from models.components.text.grammar import Constraint
from serving.core.contract import Delta, TokenLogprob
from serving.resources import Sampler


@dataclass(slots=True)
class Writer:
    """Takes the row's tokens one by one. `ends`: tokens that end the answer; `limit`: most tokens."""

    answer: ChatAnswer
    ends: Collection[int]
    limit: int
    constraint: Constraint | None = None
    deltas: list[Delta] = field(default_factory=list)  # made and not taken
    finish_reason: str | None = None

    def begin(self, sampler: Sampler, slot: int) -> None:
        """Mask the first token. Call it after `sampler.set`."""
        if self.constraint is not None:
            sampler.allow(slot, self.constraint.allowed())

    def take(self, token: int, sampler: Sampler, slot: int, logprob: TokenLogprob | None = None) -> bool:
        """The chosen token; whether the answer ends with it. The next one is masked where it must be."""
        self._grow(self.answer.feed(token, logprob))
        ended = token in self.ends or self.answer.stopped
        if self.constraint is not None and not ended:
            self.constraint.accept(token)
            ended = self.constraint.done
        cut = not ended and self.answer.tokens >= self.limit
        if ended or cut:
            self._grow(self.answer.finish())
            self.finish_reason = self.answer.finish_reason(length=cut)
        elif self.constraint is not None:
            sampler.allow(slot, self.constraint.allowed())
        return ended or cut

    def taken(self) -> list[Delta]:
        """The deltas since the last call."""
        deltas, self.deltas = self.deltas, []
        return deltas

    def info(self, **more: Any) -> dict[str, Any]:
        """The facts for the port "info", once the answer has ended."""
        counts = {"output_tokens": self.answer.tokens, "finish_reason": self.finish_reason}
        if self.answer.reasoning_tokens:
            counts["reasoning_tokens"] = self.answer.reasoning_tokens
        return counts | more

    def _grow(self, delta: Delta) -> None:
        if delta is not NOTHING:
            self.deltas.append(delta)


def joined(deltas: Iterable[Delta]) -> Delta:
    """Several deltas as one."""
    made = list(deltas)
    if len(made) == 1:
        return made[0]
    return Delta(
        "".join(delta.reasoning for delta in made),
        "".join(delta.text for delta in made),
        tuple(call for delta in made for call in delta.tool_calls),
        tuple(token for delta in made for token in delta.logprobs),
        tuple(token for delta in made for token in delta.token_ids),
    )
