"""The knobs of chat models: OpenAI's rules, and what they mean for tools and grammars."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from models.components.text.chat import ChatKnobs
from models.components.text.tool_calls import JsonMarkup
from serving.errors import BadRequest
from serving.resources import SamplingParams

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}}


def tool(name, **more):
    return {"type": "function", "function": {"name": name, "parameters": WEATHER, **more}}


def named(name):
    return {"type": "function", "function": {"name": name}}


def made(**fields):
    return ChatKnobs.model_validate(fields)


def rules(knobs, **options):
    return knobs.grammar(JsonMarkup(), **options)


def test_openais_defaults_change_nothing():
    assert made().sampling() == SamplingParams(temperature=1.0)
    assert (made().stop, made().callable, rules(made())) == ((), {}, None)


def test_sampling_takes_every_parameter():
    fields = {"temperature": 0.5, "top_p": 0.0, "top_k": 3, "min_p": 0.1, "presence_penalty": 1.0}
    params = made(**fields, frequency_penalty=-1.0, repetition_penalty=1.2, logit_bias={"7": -100}).sampling()
    assert 0 < params.top_p < 1e-5, "0 keeps the likeliest token"
    assert (params.temperature, params.top_k, params.min_p, params.logit_bias) == (0.5, 3, 0.1, {7: -100.0})
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1.0, -1.0, 1.2)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"logit_bias": {"x": 1}}, "no token id"),
        ({"logit_bias": {"1": 101}}, "less than or equal to 100"),
        ({"top_logprobs": 21, "logprobs": True}, "less than or equal to 20"),
        ({"stop": ["a"] * 5}, "at most 4"),
        ({"stop": ""}, "at least 1"),
        ({"tools": [tool("a b")]}, "pattern"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]}, "an object"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "xml"}}, "json_object"),
    ],
)
def test_what_is_refused(fields, says):
    with pytest.raises(ValidationError, match=says):
        made(**fields)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"top_logprobs": 2}, "top_logprobs", 'needs "logprobs"'),
        ({"tools": [tool("a"), tool("a")]}, "tools", "different names"),
        ({"tool_choice": "required"}, "tool_choice", 'needs "tools"'),
        ({"tools": [tool("weather")], "tool_choice": named("wether")}, "tool_choice", 'Did you mean "weather"'),
    ],
)
def test_fields_that_do_not_go_together_are_named(fields, param, says):
    with pytest.raises(BadRequest, match=says) as caught:
        made(**fields)
    assert caught.value.param == param


def test_one_stop_string_may_stand_alone():
    assert made(stop="\n").stop == ("\n",)
    assert made(stop=["a", "b"]).stop == ("a", "b")


def test_none_hides_the_tools_and_a_name_leaves_one():
    tools = [tool("a"), tool("b")]
    hidden = made(tools=tools, tool_choice="none")
    assert (hidden.offered, hidden.callable, rules(hidden)) == ((), {}, None)
    chosen = made(tools=tools, tool_choice=named("b"))
    assert [one["function"]["name"] for one in chosen.offered] == ["a", "b"]
    assert list(chosen.callable) == ["b"]
    assert '\\"b\\"' in rules(chosen)
    assert '\\"a\\"' not in rules(chosen)
    assert rules(chosen).count("<tool_call>") == 1
    required = rules(made(tools=tools, tool_choice="required"))
    assert "*" in required.split("\n")[0]
    assert "*" not in rules(made(tools=tools, tool_choice="required", parallel_tool_calls=False)).split("\n")[0]


def test_a_format_leaves_calls_possible_and_strict_tools_bind():
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": WEATHER}}
    assert rules(made(response_format=schema)).startswith('start: %json {"type": "object", "properties": {"city"')
    assert rules(made(response_format={"type": "json_object"}), thinking=True).startswith("start: thought")
    both = rules(made(response_format=schema, tools=[tool("a")]))
    assert "<tool_call>" in both
    assert "%json" in both
    assert rules(made(tools=[tool("a")])) is None
    mixed = rules(made(tools=[tool("a", strict=True), tool("b")])).split("\n")[0]
    assert mixed.count('"city"') == 1, "b takes any object"
