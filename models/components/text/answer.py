"""A chat answer from its tokens: text, thoughts, tool calls and log-probabilities, a delta a token."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from models.components.text.detokenize import Detokenizer, Vocabulary
from models.components.text.reasoning import Reasoning
from models.components.text.stops import StopStrings
from models.components.text.tool_calls import Call, ToolCalls
from serving.core.contract import Delta, TokenLogprob, ToolCall

NOTHING = Delta()


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
        self._detokenizer = Detokenizer(vocabulary.pieces)
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
        start, self._read = self._read, self._read + len(text)
        if logprob is not None and (text or self._detokenizer.pending):
            self._spans.waiting.append((start, self._read + self._detokenizer.pending, logprob))
        if self._reasoning is not None and self._reasoning.inside:
            self.reasoning_tokens += 1
        thought, said = self._split(text)
        said = self._stops.feed(said)
        calls: Sequence[Call] = ()
        if self._calls is not None:
            said, calls = self._calls.feed(said)
        return self._delta(thought, said, calls, self._spans.take(self._sent), (token,))

    def finish(self) -> Delta:
        """What waited for more. Call it once, after the last token."""
        rest = self._detokenizer.finish()
        self._read += len(rest)
        thought, said = self._split(rest)
        if self._reasoning is not None:
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
        return ("", text) if self._reasoning is None else self._reasoning.feed(text)

    def _delta(
        self, thought: str, said: str, calls: Sequence[Call], logprobs: tuple[TokenLogprob, ...], ids: tuple[int, ...]
    ) -> Delta:
        self.called += len(calls)
        ids = ids if self._token_ids else ()
        if not (thought or said or calls or logprobs or ids):
            return NOTHING
        made = tuple(ToolCall(f"call_{secrets.token_hex(12)}", call.name, call.arguments) for call in calls)
        return Delta(thought, said, made, logprobs, ids)
