"""Constrained decoding: which tokens keep an answer inside a grammar. By llguidance, on the host."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from tokenizers import Tokenizer

from models.components.text.detokenize import Vocabulary
from models.components.text.reasoning import TAGS
from models.components.text.tool_calls import OPEN, Markup, Tools, embedded
from serving.errors import BadRequest, StepFailed

RULES = rf"""
text_value[suffix="\n</parameter>\n"]: /(?s:.*)/
thought[suffix={json.dumps(TAGS[1])}]: /(?s:.*)/
until_call[lazy]: /(?s:.*)/ {json.dumps(OPEN)}
TEXT: /(?s:.*)/
"""


def json_answer(schema: Mapping[str, Any] | None) -> str:
    """A Lark expression: one JSON value; None: any object."""
    return embedded({"type": "object"} if schema is None else schema)


def calls_answer(markup: Markup, tools: Tools, *, several: bool) -> str:
    """A Lark expression: calls of these tools and nothing else."""
    call = f"{json.dumps(OPEN)} ({_bodies(markup, tools)})"
    return f'{call} ("\\n" {call})*' if several else call


def strict_answer(markup: Markup, tools: Tools, *, several: bool) -> str:
    """A Lark expression: text in which every call keeps to its tool's schema."""
    return f"(until_call ({_bodies(markup, tools)})){'*' if several else '?'} TEXT"


def grammar(answer: str, *, thinking: bool = False) -> str:
    """The whole grammar of an answer; `thinking`: it begins inside a thought."""
    start = f'thought "\\n\\n" ({answer})' if thinking else answer
    used = [rule for rule in RULES.strip().split("\n") if rule.split("[")[0].split(":")[0] in start]
    return "\n".join([f"start: {start}", *used])


def _bodies(markup: Markup, tools: Tools) -> str:
    return " | ".join(markup.lark(name, schema) for name, schema in tools.items())


@dataclass(frozen=True, slots=True)
class _Words:
    """A vocabulary as llguidance reads it."""

    tokens: Sequence[bytes]
    special_token_ids: Sequence[int]
    eos_token_id: int
    tokenizer: Tokenizer
    bos_token_id: int | None = None

    def __call__(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids


class Grammars:
    """Compiles grammars for one vocabulary. Making one takes a second for a large vocabulary: do it at load."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary, end: int) -> None:
        """`end`: the token that ends an answer."""
        self.size = len(vocabulary)
        # A byte that no text has keeps ids that say nothing out of every grammar.
        tokens = [piece or b"\xff" + vocabulary.special.get(i, b"") for i, piece in enumerate(vocabulary.pieces)]
        words = _Words(tokens, [*vocabulary.special], end, tokenizer)
        self._tokenizer = LLTokenizer(TokenizerWrapper(words), n_vocab=self.size, eos_token=end)
        self._compiled = lru_cache(64)(self._compile)

    def check(self, text: str, param: str) -> None:
        """Compile a grammar; `BadRequest` names `param` if it cannot be kept to."""
        found = self._compiled(text).get_error()
        if found:
            raise BadRequest(f'"{param}" cannot be kept to: {found.splitlines()[0]}.', param=param)

    def begin(self, text: str) -> Constraint:
        """A checked grammar, for one answer."""
        return Constraint(self._compiled(text).deep_copy(), self.size)

    def _compile(self, text: str) -> LLMatcher:
        return LLMatcher(self._tokenizer, text, log_level=0)


class Constraint:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: LLMatcher, size: int) -> None:
        self._matcher = matcher
        self._words = allocate_token_bitmask(1, size)

    def allowed(self) -> np.ndarray:
        """[ceil(V / 32)] int32: bit i of word w says whether token 32 w + i may come next. Valid until called again."""
        fill_next_token_bitmask(self._matcher, self._words)
        self._refuse_errors()
        return self._words[0]

    def accept(self, token: int) -> None:
        """Take the token that was chosen."""
        self._matcher.consume_token(token)
        self._refuse_errors()

    @property
    def done(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._matcher.is_stopped()

    def _refuse_errors(self) -> None:
        if self._matcher.is_error():
            raise StepFailed(f"The grammar of the answer failed: {self._matcher.get_error().splitlines()[0]}")
