"""Constrained decoding: whatever a model would rather say, what it says is valid."""

from __future__ import annotations

import json
import random

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.components.text import grammar
from models.components.text.detokenize import Vocabulary
from models.components.text.tests import words
from models.components.text.tool_calls import JsonMarkup, ToolCalls, XmlMarkup
from serving.errors import BadRequest, StepFailed

VOCABULARY = Vocabulary.of(words.tokenizer(), 450)
GRAMMARS = grammar.Grammars(words.tokenizer(), VOCABULARY, words.end())
NEWLINE = words.encode("\n")[0]


def tokens(words_):
    bits = np.unpackbits(words_.view(np.uint8), bitorder="little")
    assert not bits[len(VOCABULARY) :].any(), "no token beyond the vocabulary"
    return np.flatnonzero(bits).tolist()


def free(allowed):
    """Whether any text may follow, but not the end."""
    return NEWLINE in allowed and words.end() not in allowed and len(allowed) > len(VOCABULARY) // 2


def hurried(allowed):
    """Of these, what ends a thing soonest: the end, or whatever closes."""
    if words.end() in allowed:
        return [words.end()]
    return [token for token in allowed if VOCABULARY.pieces[token][-1:] in (b'"', b"}", b"]", b">")] or allowed


def say(text, seed=0, patience=40):
    """What a model of random weights says under a grammar, in a hurry past its patience."""
    GRAMMARS.check(text, "response_format")
    constraint, rng, ids = GRAMMARS.begin(text), random.Random(seed), []
    leaving: list[int] = []
    while not constraint.done:
        allowed = tokens(constraint.allowed())
        if len(ids) > patience and not leaving and free(allowed):
            leaving = words.encode("</think>" if "thought" in text else "\n</parameter>\n")
        token = leaving.pop(0) if leaving else rng.choice(hurried(allowed) if len(ids) > patience else allowed)
        assert token == words.end() or VOCABULARY.pieces[token], "tokens that say nothing are never allowed"
        if token == words.end():
            break
        constraint.accept(token)
        ids.append(token)
        assert len(ids) < 2000, "it never ends"
    return words.tokenizer().decode(ids)


def bounded(kind, values):
    """A number with both bounds."""
    return st.tuples(values, values).map(lambda pair: {"type": kind, "minimum": min(pair), "maximum": max(pair)})


LEAVES = st.one_of(
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": "integer"}, {"type": "number"}]),
    bounded("integer", st.integers(-1000, 1000)),
    bounded("number", st.integers(-50, 50)),
    st.integers(0, 6).map(lambda most: {"type": "string", "maxLength": most}),
    st.sampled_from([{"type": "string", "pattern": "^[a-c]{2,4}$"}, {"type": "string"}]),
    st.lists(st.one_of(st.text(max_size=4), st.integers(-9, 9)), min_size=1, max_size=3).map(lambda v: {"enum": v}),
    st.text(max_size=5).map(lambda value: {"const": value}),
)


def larger(inner):
    return st.one_of(
        st.tuples(inner, st.integers(0, 2)).map(
            lambda v: {"type": "array", "items": v[0], "minItems": v[1], "maxItems": v[1] + 2}
        ),
        st.lists(inner, min_size=1, max_size=3).map(lambda v: {"anyOf": v}),
        st.dictionaries(st.text(max_size=4), inner, max_size=3).flatmap(
            lambda found: (
                st.sets(st.sampled_from(sorted(found))).map(
                    lambda needed: {
                        "type": "object",
                        "properties": found,
                        "required": sorted(needed),
                        "additionalProperties": False,
                    }
                )
                if found
                else st.just({"type": "object", "additionalProperties": False})
            )
        ),
    )


SCHEMAS = st.recursive(LEAVES, larger, max_leaves=6)


@settings(deadline=None)
@given(SCHEMAS, st.integers(0, 1 << 30))
def test_what_is_said_under_a_schema_always_validates(schema, seed):
    jsonschema.validate(json.loads(say(grammar.grammar(grammar.json_answer(schema)), seed)), schema)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1 << 30))
def test_any_object_is_an_object(seed):
    assert isinstance(json.loads(say(grammar.grammar(grammar.json_answer(None)), seed)), dict)


OBJECT = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "s": {"type": "string"}, "e": {"enum": [1]}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOLS = {"first": OBJECT, "second": {"type": "object", "properties": {}, "additionalProperties": False}}


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1 << 30), st.booleans())
@pytest.mark.parametrize("markup", [JsonMarkup(), XmlMarkup()])
def test_calls_that_must_be_made_are_made_and_their_arguments_validate(markup, seed, several):
    text = say(grammar.grammar(grammar.calls_answer(markup, TOOLS, several=several)), seed)
    reader = ToolCalls(markup, TOOLS)
    said, calls = reader.feed(text)
    assert (said + reader.finish(), len(calls) == 1) == ("", not several or len(calls) == 1)
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), TOOLS[call.name])


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1 << 30))
@pytest.mark.parametrize("markup", [JsonMarkup(), XmlMarkup()])
def test_what_looks_like_a_call_in_free_text_is_one(markup, seed):
    text = say(grammar.grammar(grammar.strict_answer(markup, TOOLS, several=True)), seed)
    reader = ToolCalls(markup, TOOLS)
    said, calls = reader.feed(text)
    assert "<tool_call>" not in said + reader.finish()
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), TOOLS[call.name])


def test_free_text_with_strict_calls_can_be_led_to_one():
    constraint = GRAMMARS.begin(grammar.grammar(grammar.strict_answer(JsonMarkup(), TOOLS, several=True)))
    for token in words.encode('Well. <tool_call>\n{"name": "'):
        assert token in tokens(constraint.allowed())
        constraint.accept(token)
    assert all(VOCABULARY.pieces[token][:1] in b"fs" for token in tokens(constraint.allowed()))


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1 << 30))
def test_a_grammar_waits_for_the_end_of_a_thought(seed):
    text = say(grammar.grammar(grammar.json_answer(OBJECT), thinking=True), seed)
    _, answer = text.split("</think>\n\n", 1)
    jsonschema.validate(json.loads(answer), OBJECT)


@pytest.mark.parametrize(
    "schema",
    [{"type": "strin"}, {"type": "integer", "minimum": 5, "maximum": 1}, {"$ref": "#/$defs/none"}, {"not": {}}],
)
def test_a_schema_that_cannot_be_kept_to_is_a_400(schema):
    with pytest.raises(BadRequest) as caught:
        GRAMMARS.check(grammar.grammar(grammar.json_answer(schema)), "response_format.json_schema.schema")
    assert caught.value.param == "response_format.json_schema.schema"


def test_blank_space_cannot_go_on_for_ever():
    constraint = GRAMMARS.begin(grammar.grammar(grammar.json_answer(None)))
    blanks = [t for t, piece in enumerate(VOCABULARY.pieces) if piece and not piece.strip()]
    constraint.accept(words.encode("{")[0])
    count = 0
    while blank := [token for token in tokens(constraint.allowed()) if token in blanks]:
        constraint.accept(blank[0])
        count += 1
        assert count < 30
    assert count


def test_a_token_that_was_not_allowed_fails_the_answer_alone():
    one, other = (GRAMMARS.begin(grammar.grammar(grammar.json_answer(None))) for _ in range(2))
    with pytest.raises(StepFailed):
        one.accept(words.encode("x")[0])
    assert tokens(other.allowed())
