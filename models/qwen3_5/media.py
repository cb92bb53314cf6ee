"""A task to the tokens of its prompt, and what the node says to what the API shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.components.text.conversation import ChatTokenizer, Message, Prompt
from models.components.text.decoder import joined
from models.qwen3_5.request import QwenChatKnobs, QwenGenerateKnobs
from serving.core.contract import Packed, Task
from serving.errors import BadRequest


def messages_of(task: Task) -> list[Message]:
    """The conversation of a chat, or a text as its only message."""
    knobs = task.knobs
    if task.kind == "chat":
        return list(task.inputs["messages"])
    assert isinstance(knobs, QwenGenerateKnobs)
    if bool(knobs.messages) == bool(task.inputs.get("text")):
        raise BadRequest('Give "text" or "messages", one of them.', param="messages")
    return list(knobs.messages) or [{"role": "user", "content": task.inputs["text"]}]


def prompt_of(task: Task, tokenizer: ChatTokenizer) -> Prompt:
    knobs: QwenChatKnobs = task.knobs
    return tokenizer.prompt(messages_of(task), knobs.offered, **knobs.template)


def limit_of(knobs: QwenChatKnobs, prompt: int, context: int) -> int:
    """Most tokens of the answer. Raises `BadRequest` where prompt and answer do not fit the context."""
    room = context - prompt
    if room < 1 or (knobs.max_tokens or 0) > room:
        raise BadRequest(
            f"The model's context is {context} tokens: the messages have {prompt}, which leaves "
            f"{max(0, room)} for max_tokens.",
            param="messages" if room < 1 else "max_tokens",
            code="context_length_exceeded",
        )
    return knobs.max_tokens or room


def shown(port: str, items: Packed) -> Any:
    """Deltas as one, facts as a mapping."""
    if port == "text":
        return joined(list(items.values))
    facts: Mapping[str, Any] = items.values[0]
    return facts
