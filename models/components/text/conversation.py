"""Messages to the tokens of a prompt, by the checkpoint's own tokenizer and chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError
from tokenizers import Tokenizer

from models.components.text.reasoning import TAGS
from serving.errors import BadRequest, SetupError

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """`marks`: how many tokens there are up to the end of each message. `thinking`: it has opened a thought."""

    ids: np.ndarray  # [T] int64
    marks: tuple[int, ...]
    thinking: bool


class ChatTokenizer:
    """A checkpoint folder's tokenizer with its chat template. `end`: the token that ends a message."""

    def __init__(self, folder: Path, end: str = "<|im_end|>") -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except (OSError, ValueError) as error:
            raise SetupError(f"{folder} has no tokenizer that can be read: {error}", param="weights") from error
        if not self._tokenizer.chat_template:
            raise SetupError(f"the tokenizer in {folder} has no chat template", param="weights")
        self.backend: Tokenizer = self._tokenizer.backend_tokenizer
        found = self.backend.token_to_id(end)
        if found is None:
            raise SetupError(f"the tokenizer in {folder} has no {end}", param="weights")
        self.end: int = found

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], **variables: Any) -> Prompt:
        """The conversation up to the answer's beginning. Raises `BadRequest` where the template refuses it."""
        try:
            text = self._tokenizer.apply_chat_template(
                [plain(message) for message in messages],
                tools=[*tools] or None,
                add_generation_prompt=True,
                tokenize=False,
                **variables,
            )
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise BadRequest(f"The chat template refuses these messages: {error}.", param="messages") from error
        ids = np.array(self.encode(text), np.int64)
        marks = tuple((np.flatnonzero(ids == self.end) + 1).tolist())
        return Prompt(ids, marks, text.rstrip().endswith(TAGS[0]))

    def encode(self, text: str) -> list[int]:
        """Ids of text in which special tokens stand under their names."""
        return self.backend.encode(text, add_special_tokens=False).ids


def plain(message: Message) -> dict[str, Any]:
    """A message as templates read it: text in one string, arguments of calls as mappings."""
    found = {name: value for name, value in message.items() if value is not None}
    if found["role"] == "developer":
        found["role"] = "system"
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        found["content"] = "".join(_text(part) for part in content)
    elif content is None:
        found["content"] = ""
    if message.get("tool_calls"):
        found["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return found


def _text(part: Mapping[str, Any]) -> str:
    if part["type"] != "text":
        raise BadRequest(f"This model takes no {part['type']} in messages.", param="messages")
    return part["text"]


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"])
        except ValueError as error:
            message = f"The arguments of a tool call are no JSON: {error}."
            raise BadRequest(message, param="messages.tool_calls") from error
    return {**call, "function": function}
