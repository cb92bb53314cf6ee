"""A task to the tokens of its prompt, and what the node says to what the API shows."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.components.text.conversation import ChatTokenizer, Prompt
from models.components.text.writer import joined
from models.qwen3_5.request import QwenChatKnobs, QwenTextKnobs
from serving.core.contract import Packed, Task
from serving.errors import BadRequest


def prompt_of(task: Task, tokenizer: ChatTokenizer) -> Prompt:
    """Of a conversation by the chat template, of a text its own tokens."""
    knobs = task.knobs
    if isinstance(knobs, QwenChatKnobs):
        return tokenizer.prompt(task.inputs["messages"], knobs.offered, **knobs.template)
    text = task.inputs.get("text")
    if not text:
        raise BadRequest("The text is empty.", param="text")
    return Prompt(np.array(tokenizer.encode(text), np.int64), (), thinking=False)


def limit_of(knobs: QwenChatKnobs | QwenTextKnobs, prompt: int, context: int) -> int:
    """Most tokens of the answer. Raises `BadRequest` where prompt and answer do not fit the context."""
    room = context - prompt
    if room < 1 or (knobs.max_tokens or 0) > room:
        raise BadRequest(
            f"The model's context is {context} tokens: the prompt has {prompt}, which leaves "
            f"{max(0, room)} for max_tokens.",
            param="messages" if room < 1 else "max_tokens",
            code="context_length_exceeded",
        )
    return knobs.max_tokens or room


def shown(port: str, items: Packed) -> Any:
    """Deltas as one, facts as a mapping."""
    return joined(items.values) if port == "text" else items.values[0]
