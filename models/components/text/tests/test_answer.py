"""A chat answer: deltas add up, log-probabilities keep to what was sent."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.components.text.answer import ChatAnswer
from models.components.text.detokenize import Vocabulary
from models.components.text.reasoning import Reasoning
from models.components.text.tests import words
from models.components.text.tests.test_tool_calls import JSON_CALL, TOOLS
from models.components.text.tool_calls import JsonMarkup, ToolCalls
from serving.core.contract import TokenLogprob

VOCABULARY = Vocabulary.of(words.tokenizer())


def run(ids, **options):
    """The deltas of these tokens until a stop, the last one from `finish`."""
    answer = ChatAnswer(VOCABULARY, **options)
    deltas = []
    for token in ids:
        deltas.append(answer.feed(token, TokenLogprob(token, VOCABULARY.shown(token), -1.0)))
        if answer.stopped:
            break
    return answer, [*deltas, answer.finish()]


def text_of(deltas):
    return "".join(delta.text for delta in deltas)


def data_of(deltas):
    return b"".join(one.data for delta in deltas for one in delta.logprobs)


@given(st.text("ab 東é🦄", max_size=30), st.lists(st.text("ab 東", min_size=1, max_size=3), max_size=3))
def test_deltas_add_up_to_the_text_before_a_stop_and_logprobs_cover_it(text, stops):
    answer, deltas = run([*words.encode(text), words.end()], stops=stops)
    sent = text_of(deltas)
    assert text.startswith(sent)
    assert (sent == text) is not answer.stopped
    assert not any(stop in sent for stop in stops)
    assert data_of(deltas).startswith(sent.encode())
    tokens = [one.data for delta in deltas for one in delta.logprobs]
    assert len(b"".join(tokens[:-1])) < len(sent.encode()) or not tokens, "none beyond the one in which the text ends"


@given(st.lists(st.integers(0, len(VOCABULARY) - 1), max_size=30))
@example([words.encode("🦄")[0], words.end()])  # a token that says nothing inside a character
def test_any_tokens_have_one_logprob_each_that_says_something(ids):
    _, deltas = run(ids)
    assert text_of(deltas) == words.tokenizer().decode(ids, skip_special_tokens=True)
    spoken = [token for token in ids if VOCABULARY.pieces[token]]
    assert [one.id for delta in deltas for one in delta.logprobs] == spoken


def test_logprobs_leave_with_their_characters_and_not_before():
    ids = words.encode("🦄b")
    answer = ChatAnswer(VOCABULARY, stops=["bc"])
    counts = [len(answer.feed(token, TokenLogprob(token, b"", 0.0)).logprobs) for token in ids]
    assert sum(counts[:-2]) == 0, "a character has not left, so its tokens have not"
    assert counts[-2:] == [len(ids) - 1, 0], "the letter waits: it could be a stop"
    assert [one.id for one in answer.finish().logprobs] == [ids[-1]]


def test_everything_at_once():
    text = f"I think.\n</think>\n\nLook: \n{JSON_CALL}"
    calls = ToolCalls(JsonMarkup(), TOOLS)
    ids = [*words.encode(text), words.end()]
    answer, deltas = run(ids, reasoning=Reasoning(inside=True), calls=calls, stops=["think"], token_ids=True)
    assert "".join(delta.reasoning for delta in deltas) == "I think."
    assert text_of(deltas) == "Look:"
    (call,) = [call for delta in deltas for call in delta.tool_calls]
    assert (call.name, call.arguments) == ("weather", '{"city": "Paris", "days": 3}')
    assert call.id.startswith("call_")
    assert [token for delta in deltas for token in delta.token_ids] == ids
    assert (answer.tokens, answer.finish_reason(length=False)) == (len(ids), "tool_calls")
    assert answer.reasoning_tokens == len(words.encode("I think.\n</think>"))


@pytest.mark.parametrize(
    ("stops", "length", "reason"), [((), False, "stop"), ((), True, "length"), (["b"], True, "stop")]
)
def test_how_an_answer_ended(stops, length, reason):
    assert run(words.encode("abc"), stops=stops)[0].finish_reason(length=length) == reason
