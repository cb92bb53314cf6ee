"""A chat answer from its tokens: text, thoughts, tool calls and log-probabilities, a delta a token."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from models.components.text.detokenize import Detokenizer, Vocabulary
from models.components.text.reasoning import Reasoning
from models.components.text.stops import StopStrings
from models.components.text.tool_calls import Call, ToolCalls
from serving.core.contract import Delta, TokenLogprob, ToolCall

NOTHING = Delta()
LEAST = -9999.0


def described(
    vocabulary: Vocabulary, token: int, logprob: float, top: Iterable[tuple[int, float]] = ()
) -> TokenLogprob:
    """A token's log-probability; `top`: the likeliest ones in its place with theirs.

    JSON has no infinity: the token's is at least `LEAST`, as OpenAI has it, and what is impossible is left out of
    `top`.
    """
    likely = ((other, value) for other, value in top if value > LEAST)
    others = tuple(TokenLogprob(other, vocabulary.shown(other), value) for other, value in likely)
    return TokenLogprob(token, vocabulary.shown(token), max(logprob, LEAST), others)


@dataclass(slots=True)
class _Spans:
    """Log-probabilities that wait until the characters of their tokens have left."""

    waiting: deque[tuple[int, int, TokenLogprob]] = field(default_factory=deque)

    def take(self, sent: int, *, last: bool = False) -> tuple[TokenLogprob, ...]:
        """Of the tokens whose characters all lie in the first `sent`; at the end, of those with any there."""
        found = []
        while self.waiting and (self.waiting[0][1] <= sent or (last and self.waiting[0][0] < sent)):
            found.append(self.waiting.popleft()[2])
        return tuple(found)


class ChatAnswer:
    """One answer as it grows. The deltas of any chunking add up to the same answer.

    Stop strings count in what is said, not in thoughts. `calls`: what takes tool calls out of it.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        stops: Sequence[str] = (),
        reasoning: Reasoning | None = None,
        calls: ToolCalls | None = None,
        token_ids: bool = False,
    ) -> None:
        self._pieces = vocabulary.pieces
        self._detokenizer = Detokenizer(self._pieces)
        self._stops = StopStrings(stops)
        self._reasoning, self._calls, self._token_ids = reasoning, calls, token_ids
        self._spans = _Spans()
        self._read = 0  # characters of the answer so far
        self.tokens = self.reasoning_tokens = self.called = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete: the answer ends here."""
        return self._stops.found is not None

    def feed(self, token: int, logprob: TokenLogprob | None = None) -> Delta:
        """The next token, the end token too."""
        self.tokens += 1
        text = self._detokenizer.feed(token)
        start = self._read
        self._read += len(text)
        if logprob is not None and self._pieces[token]:
            self._spans.waiting.append((start, self._read + self._detokenizer.pending, logprob))
        thought, said = self._split(text) if self._reasoning is not None else ("", text)
        said = self._stops.feed(said)
        calls: Sequence[Call] = ()
        if self._calls is not None:
            said, calls = self._calls.feed(said)
        logprobs = self._spans.take(self._sent) if self._spans.waiting else ()
        return self._delta(thought, said, calls, logprobs, (token,) if self._token_ids else ())

    def finish(self) -> Delta:
        """What waited for more. Call it once, after the last token."""
        said, thought = self._detokenizer.finish(), ""
        self._read += len(said)
        if self._reasoning is not None:
            thought, said = self._reasoning.feed(said)
            more, behind = self._reasoning.finish()
            thought, said = thought + more, said + behind
        said = self._stops.feed(said) + self._stops.finish()
        calls: Sequence[Call] = ()
        if self._calls is not None:
            said, calls = self._calls.feed(said)
            said += self._calls.finish()
        return self._delta(thought, said, calls, self._spans.take(self._sent, last=True), ())

    def finish_reason(self, *, length: bool) -> str:
        """OpenAI's word for how the answer ended; `length`: it was cut by a limit."""
        if length and not self.stopped:
            return "length"
        return "tool_calls" if self.called else "stop"

    @property
    def _sent(self) -> int:
        """Characters that will never be cut off again."""
        held = self._reasoning.held if self._reasoning is not None else 0
        return self._read - held - self._stops.held - self._stops.cut

    def _split(self, text: str) -> tuple[str, str]:
        """(thought, said) of a token's text; once the thought is over nothing needs to be split."""
        if self._reasoning is None:
            return "", text
        self.reasoning_tokens += self._reasoning.inside
        found = self._reasoning.feed(text)
        if self._reasoning.over:
            self._reasoning = None
        return found

    def _delta(
        self, thought: str, said: str, calls: Sequence[Call], logprobs: tuple[TokenLogprob, ...], ids: tuple[int, ...]
    ) -> Delta:
        self.called += len(calls)
        if not (thought or said or calls or logprobs or ids):
            return NOTHING
        made = tuple(ToolCall(f"call_{secrets.token_hex(12)}", call.name, call.arguments) for call in calls)
        return Delta(thought, said, made, logprobs, ids)
