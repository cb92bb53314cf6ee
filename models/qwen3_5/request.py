"""The request's knobs: what every chat model has, and the log-probabilities of `/generate`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from models.components.text.chat import ChatKnobs


class QwenChatKnobs(ChatKnobs):
    """A conversation goes on. The thought that comes first is `reasoning_content`."""

    logprobs_mode: Literal["raw", "processed"] = Field(
        "raw", description='"processed": under the distribution that was drawn from, penalties and cuts applied'
    )
    ignore_eos: bool = Field(False, description="go on to max_tokens")

    @property
    def template(self) -> dict[str, Any]:
        """Variables of the chat template."""
        thinking = {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
        return {**thinking, **self.chat_template_kwargs}


class QwenGenerateKnobs(QwenChatKnobs):
    """An answer to a text, or to `messages` in OpenAI's form."""

    messages: tuple[dict[str, Any], ...] = Field((), description="a whole conversation instead of a text")
    return_logprobs: bool = Field(False, description="the log-probability of each token")
