"""What every language model lets a caller choose: OpenAI's fields, then those that open models add."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from models.base import Knobs
from models.components.text import grammar
from models.components.text.tool_calls import Markup, Tools
from serving.errors import BadRequest, nearest
from serving.resources import SamplingParams

SMALLEST = 1e-6  # a top_p that keeps the likeliest token alone
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Function(_Part):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _object(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        if schema and schema.get("type", "object") != "object":
            raise ValueError('arguments are an object: its schema has the type "object"')
        return schema


class Tool(_Part):
    type: Literal["function"]
    function: Function


class Chosen(_Part):
    name: Name


class ToolChoice(_Part):
    type: Literal["function"]
    function: Chosen


class JsonSchema(_Part):
    name: Name
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class AsText(_Part):
    type: Literal["text"]


class AsObject(_Part):
    type: Literal["json_object"]


class AsSchema(_Part):
    type: Literal["json_schema"]
    json_schema: JsonSchema


Format = Annotated[AsText | AsObject | AsSchema, Field(discriminator="type")]
Bias = Annotated[float, Field(ge=-100, le=100)]
Stops = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    Field(max_length=4, description="text that ends the answer and is no part of it; one may stand alone"),
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else _tuple(value)),
]


def _tuple(value: Any) -> Any:
    """A list as the tuple that strict validation wants of Python values."""
    return tuple(value) if isinstance(value, list) else value


class SamplingKnobs(Knobs):
    """How a text is chosen and where it ends, and what is told of its tokens."""

    max_tokens: int | None = Field(None, ge=1, description="of the answer; None: what the context has room for")
    temperature: float = Field(1.0, ge=0, le=2, description="0: the likeliest token")
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=0, description="0: all")
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    logit_bias: dict[str, Bias] = Field(default_factory=dict, description="token id -> what is added to its logit")
    stop: Stops = ()
    top_logprobs: int = Field(0, ge=0, le=20, description="the likeliest tokens in each place; needs log-probabilities")
    logprobs_mode: Literal["raw", "processed"] = Field(
        "raw", description='"processed": as the choice saw them, after penalties, temperature and cuts'
    )
    return_token_ids: bool = False

    @field_validator("logit_bias")
    @classmethod
    def _ids(cls, bias: dict[str, float]) -> dict[str, float]:
        for name in bias:
            if not name.isascii() or not name.isdigit():
                raise ValueError(f'"{name}" is no token id')
        return bias

    def sampling(self) -> SamplingParams:
        """For `serving.resources.Sampler`."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=max(self.top_p, SMALLEST),
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias={int(name): value for name, value in self.logit_bias.items()},
        )


class TextKnobs(SamplingKnobs):
    """A text goes on, through `/generate`."""

    return_logprobs: bool = False

    @model_validator(mode="after")
    def _together(self) -> TextKnobs:
        if self.top_logprobs and not self.return_logprobs:
            raise BadRequest('"top_logprobs" needs "return_logprobs".', param="top_logprobs")
        return self


class ChatKnobs(SamplingKnobs):
    """A conversation goes on. A port subclasses this where it has more, or other defaults."""

    logprobs: bool = False
    response_format: Format = AsText(type="text")
    tools: Annotated[tuple[Tool, ...], Field(max_length=128)] = ()
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool = True
    enable_thinking: bool | None = Field(None, description="think first; None: as the model does by itself")
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict, description="given to the chat template")

    @model_validator(mode="after")
    def _together(self) -> ChatKnobs:
        if self.top_logprobs and not self.logprobs:
            raise BadRequest('"top_logprobs" needs "logprobs".', param="top_logprobs")
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise BadRequest('"tools" must have different names.', param="tools")
        if self.tool_choice not in {None, "none", "auto"} and not names:
            raise BadRequest('"tool_choice" needs "tools".', param="tool_choice")
        if isinstance(self.tool_choice, ToolChoice) and self.tool_choice.function.name not in names:
            chosen = self.tool_choice.function.name
            raise BadRequest(f'"tool_choice": no tool "{chosen}".{nearest(chosen, names)}', param="tool_choice")
        return self

    @property
    def offered(self) -> tuple[dict[str, Any], ...]:
        """The tools that the chat template shows: none where none may be called."""
        shown = () if self.tool_choice == "none" else self.tools
        return tuple(tool.model_dump(exclude_none=True) for tool in shown)

    @property
    def callable(self) -> Tools:
        """The tools that may be called, with the schemas of their arguments."""
        chosen = self.tool_choice.function.name if isinstance(self.tool_choice, ToolChoice) else None
        found = [tool.function for tool in self.tools if self.tool_choice != "none"]
        return {f.name: f.parameters or {} for f in found if chosen in {None, f.name}}

    def grammar(self, markup: Markup, *, thinking: bool = False) -> str | None:
        """What the answer must keep to, for `Grammars`; None: nothing. `thinking`: it begins inside a thought."""
        answer = self._constraint(markup)
        return None if answer is None else grammar.grammar(answer, thinking=thinking)

    def _constraint(self, markup: Markup) -> str | None:
        several, offered = self.parallel_tool_calls, bool(self.callable)
        if isinstance(self.tool_choice, ToolChoice):
            return grammar.calls_answer(markup, self.callable, several=False)
        if self.tool_choice == "required":
            return grammar.calls_answer(markup, self.callable, several=several)
        if not isinstance(self.response_format, AsText):
            schema = self.response_format.json_schema.schema_ if self.response_format.type == "json_schema" else None
            answer = grammar.json_answer(schema)
            return f"{answer} | {grammar.calls_answer(markup, self._strict(), several=several)}" if offered else answer
        if offered and any(tool.function.strict for tool in self.tools):
            return grammar.strict_answer(markup, self._strict(), several=several)
        return None

    def _strict(self) -> Tools:
        """Schemas to keep to: of tools that are not strict, any object."""
        loose: Mapping[str, Any] = {}
        strict = {tool.function.name for tool in self.tools if tool.function.strict}
        return {name: schema if name in strict else loose for name, schema in self.callable.items()}
