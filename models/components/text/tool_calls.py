"""Tool calls in a model's text: the two markups in use, and a parser for text that comes in pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from models.components.text.stops import overlap

OPEN, CLOSE = "<tool_call>", "</tool_call>"
SHARED = ("$defs", "definitions")  # what a part of a schema may refer to
BLANK = r"[ \t\n\r]{1,24}"
NAMES = {
    bool: {"boolean"},
    str: {"string"},
    list: {"array"},
    dict: {"object"},
    type(None): {"null"},
    float: {"number"},
    int: {"integer", "number"},
}
Tools = Mapping[str, Mapping[str, Any]]  # name -> JSON schema of the arguments


@dataclass(frozen=True, slots=True)
class Call:
    """A function's name and its arguments as JSON text."""

    name: str
    arguments: str


class Markup(Protocol):
    """How a model writes a call between `OPEN` and `CLOSE`."""

    def inside(self, body: str) -> bool:
        """Whether a value has begun in `body` and not ended: a closing tag there belongs to it."""

    def parse(self, body: str, tools: Tools) -> Call | None:
        """The call in `body`; None: it is none, or names no tool."""

    def lark(self, name: str, schema: Mapping[str, Any]) -> str:
        """A Lark expression of llguidance for one call: what follows `OPEN`, to the end of `CLOSE`."""


class JsonMarkup:
    """`{"name": ..., "arguments": {...}}`, as Hermes and Qwen3 write it."""

    def inside(self, body: str) -> bool:
        return re.sub(r"\\.", "", body).count('"') % 2 == 1

    def parse(self, body: str, tools: Tools) -> Call | None:
        try:
            made = json.loads(body)
        except ValueError:
            return None
        if not isinstance(made, dict) or made.get("name") not in tools:
            return None
        arguments = made.get("arguments", {})
        return Call(made["name"], dumps(arguments)) if isinstance(arguments, dict) else None

    def lark(self, name: str, schema: Mapping[str, Any]) -> str:
        head, tail = f'\n{{"name": {json.dumps(name)}, "arguments": ', f"}}\n{CLOSE}"
        return f"{json.dumps(head)} {embedded(schema or {'type': 'object'})} {json.dumps(tail)}"


class XmlMarkup:
    """`<function=NAME>`, then `<parameter=KEY>` with a value each, as Qwen3-Coder and Qwen3.5 write it.

    The value of a parameter that may be a string is that string unless it is JSON of another admitted type.
    """

    FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
    END = "\n</parameter>\n"
    PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>(.*?)</parameter>\s*", re.DOTALL)

    def inside(self, body: str) -> bool:
        return body.rfind("<parameter=") > body.rfind("</parameter>")

    def parse(self, body: str, tools: Tools) -> Call | None:
        function = self.FUNCTION.fullmatch(body)
        if function is None or function[1] not in tools:
            return None
        schemas, arguments, at = tools[function[1]].get("properties", {}), {}, 0
        inside = function[2]
        while at < len(inside.rstrip()):
            parameter = self.PARAMETER.match(inside, at)
            if parameter is None:
                return None
            value = parameter[2].removeprefix("\n").removesuffix("\n")
            arguments[parameter[1]] = typed(value, schemas.get(parameter[1], {}))
            at = parameter.end()
        return Call(function[1], dumps(arguments))

    def lark(self, name: str, schema: Mapping[str, Any]) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", ())
        parts = [json.dumps(f"\n<function={name}>\n")]
        for key, inner in properties.items():
            head = json.dumps(f"<parameter={key}>\n")
            value = self._value({**inner, **{name: schema[name] for name in SHARED if name in schema}})
            parts.append(f"({head} {value}){'' if key in required else '?'}")
        return " ".join([*parts, json.dumps(f"</function>\n{CLOSE}")])

    def _value(self, schema: Mapping[str, Any]) -> str:
        if kinds(schema) == {"string"} and "enum" in schema:
            return f"({' | '.join(json.dumps(choice + self.END) for choice in schema['enum'])})"
        return "text_value" if kinds(schema) == {"string"} else f"{embedded(schema)} {json.dumps(self.END)}"


class ToolCalls:
    """Takes the calls out of text. What looks like one and is none stays text; nothing is lost.

    Blank space around calls is part of their markup; what stands before the first of them stays between two texts.
    """

    def __init__(self, markup: Markup, tools: Tools) -> None:
        self._markup, self._tools = markup, tools
        self._held = ""
        self._after = False  # a call was the last thing
        self._gap = ""  # blank space before it
        self._spoken = False

    @property
    def held(self) -> int:
        """Characters that wait: blank space, or what could be a call."""
        return len(self._held)

    def feed(self, text: str) -> tuple[str, list[Call]]:
        """(text, calls) that this text completes. A call comes whole, with its closing tag."""
        if not self._held and not self._after and OPEN[0] not in text and text == text.rstrip():
            return self._say(text), []
        text, self._held = self._held + text, ""
        said: list[str] = []
        calls: list[Call] = []
        while (start := text.find(OPEN)) >= 0 and (end := self._end(text, start)) >= 0:
            call = self._markup.parse(text[start + len(OPEN) : end], self._tools)
            end += len(CLOSE)
            if call is None:
                said.append(self._say(text[:end]))
            else:
                said.append(self._before(text[:start]))
                calls.append(call)
            text = text[end:]
        sure = text[: start if start >= 0 else len(text) - overlap(text, OPEN)].rstrip()
        self._held = text[len(sure) :]
        return "".join([*said, self._say(sure)]), calls

    def finish(self) -> str:
        """Text that waited: a call that never ended, or blank space that is no markup."""
        text, self._held = self._held, ""
        return self._say(text)

    def _end(self, text: str, start: int) -> int:
        """Where the tag is that closes the call begun at `start`; -1: it has not come."""
        end = text.find(CLOSE, start)
        while end >= 0 and self._markup.inside(text[start + len(OPEN) : end]):
            end = text.find(CLOSE, end + 1)
        return end

    def _before(self, text: str) -> str:
        """What is said of the text before a call."""
        said = self._say(text.rstrip())
        if not self._after:
            self._gap = text[len(text.rstrip()) :] if self._spoken else ""
        self._after = True
        return said

    def _say(self, text: str) -> str:
        if self._after:
            text = text.lstrip()
            text, self._after = (self._gap + text, False) if text else ("", True)
        self._spoken = self._spoken or bool(text)
        return text


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def embedded(schema: Mapping[str, Any]) -> str:
    """A JSON schema inside a Lark grammar. Blank space is bounded: an answer cannot be filled with it."""
    return f"%json {json.dumps({**schema, 'x-guidance': {'whitespace_pattern': BLANK}})}"


def kinds(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema admits by name; empty: it does not say."""
    found = schema.get("type", ())
    named = {found} if isinstance(found, str) else set(found)
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        named |= kinds(part)
    return named


def typed(value: str, schema: Mapping[str, Any]) -> Any:
    """A parameter's text as the JSON value that its schema wants."""
    wanted = kinds(schema)
    if wanted == {"string"}:
        return value
    try:
        made = json.loads(value)
    except ValueError:
        return value
    return made if "string" not in wanted or wanted & NAMES[type(made)] else value


def tools_of(tools: Sequence[Mapping[str, Any]]) -> Tools:
    """OpenAI's list of function tools by name."""
    return {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in tools}
