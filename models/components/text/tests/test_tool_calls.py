"""Tool calls out of text: both markups, any split, nothing lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.components.text.tool_calls import Call, JsonMarkup, ToolCalls, XmlMarkup

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "when": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "units": {"type": ["string", "number"]},
    },
}
TOOLS = {"weather": SCHEMA, "now": {}}
JSON_CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 3}}\n</tool_call>'
XML_CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"
)
CALL = Call("weather", '{"city": "Paris", "days": 3}')
CASES = [(JsonMarkup(), JSON_CALL), (XmlMarkup(), XML_CALL)]


def read(markup, text, cuts=()):
    reader, at, said, calls = ToolCalls(markup, TOOLS), 0, "", []
    for cut in [*sorted(cut % (len(text) + 1) for cut in cuts), len(text)]:
        more, made = reader.feed(text[at:cut])
        said, at = said + more, cut
        calls += made
    return said + reader.finish(), calls


@pytest.mark.parametrize(("markup", "call"), CASES)
def test_a_call_survives_every_split(markup, call):
    text = f"I will look. \n{call}\n{call}"
    for cut in range(len(text)):
        assert read(markup, text, [cut]) == ("I will look.", [CALL, CALL])
    assert read(markup, text, range(len(text))) == ("I will look.", [CALL, CALL])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A {}\n{}  B", "A B"),
        ("A{}\n", "A"),
        (" {} B {}", "B"),
        ("A\n\n{}\nB {} C ", "A\n\nB C "),
    ],
)
@pytest.mark.parametrize(("markup", "call"), CASES)
def test_blank_space_around_calls_goes_but_words_stay_apart(markup, call, text, said):
    text = text.replace("{}", call)
    assert read(markup, text)[0] == read(markup, text, range(len(text)))[0] == said


PARTS = ["<tool_call>", "</tool_call>", JSON_CALL, XML_CALL, " ", "\n", "a", "<", "tool_call>", "{}"]


@given(st.lists(st.sampled_from(PARTS), max_size=8).map("".join), st.lists(st.integers(0, 999), max_size=12))
@pytest.mark.parametrize("markup", [JsonMarkup(), XmlMarkup()])
def test_the_result_does_not_depend_on_the_pieces(markup, text, cuts):
    said, calls = read(markup, text, cuts)
    assert (said, calls) == read(markup, text)
    if not calls:
        assert said == text


@pytest.mark.parametrize(
    "body",
    [
        "{",
        "[]",
        '{"name": "unknown", "arguments": {}}',
        '{"name": "now", "arguments": []}',
        "<function=unknown></function>",
        "<function=now>rest</function>",
        "<function=now>",
    ],
)
@pytest.mark.parametrize("markup", [JsonMarkup(), XmlMarkup()])
def test_what_is_no_call_stays_text(markup, body):
    text = f"see <tool_call>{body}</tool_call> there"
    assert read(markup, text) == (text, [])
    assert read(markup, text[:-20]) == (text[:-20], [])


def test_a_closing_tag_in_a_value_ends_nothing():
    city = 'x "</tool_call> \\'
    arguments = json.dumps({"city": city})
    for markup, body in [
        (JsonMarkup(), f'{{"name": "weather", "arguments": {arguments}}}'),
        (XmlMarkup(), f"<function=weather>\n<parameter=city>\n{city}\n</parameter>\n</function>"),
    ]:
        text = f"<tool_call>{body}</tool_call>"
        assert read(markup, text) == read(markup, text, range(len(text))) == ("", [Call("weather", arguments)])


@pytest.mark.parametrize(
    ("key", "value", "meant"),
    [
        ("city", "75001", "75001"),
        ("city", "a\n<b>", "a\n<b>"),
        ("days", "3", 3),
        ("days", "three", "three"),
        ("when", "null", None),
        ("when", "12", "12"),
        ("units", "12", 12),
        ("units", "C", "C"),
        ("other", '{"a": [1]}', {"a": [1]}),
    ],
)
def test_values_without_quotes_get_the_type_of_their_schema(key, value, meant):
    text = f"<tool_call><function=weather><parameter={key}>\n{value}\n</parameter></function></tool_call>"
    said, (call,) = read(XmlMarkup(), text)
    assert (said, json.loads(call.arguments)) == ("", {key: meant})
