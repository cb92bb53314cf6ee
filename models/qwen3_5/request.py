"""The request's knobs: what every chat model has."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from models.components.text.chat import ChatKnobs, TextKnobs

IGNORE = Field(False, description="do not end at an end token: go on to max_tokens")


class QwenChatKnobs(ChatKnobs):
    """A conversation goes on. The thought that comes first is `reasoning_content`."""

    ignore_eos: bool = IGNORE

    @property
    def template(self) -> dict[str, Any]:
        """Variables of the chat template."""
        thinking = {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
        return {**thinking, **self.chat_template_kwargs}


class QwenTextKnobs(TextKnobs):
    """A text goes on, as it is: no chat template."""

    ignore_eos: bool = IGNORE
