"""Detokenising: every chunking gives the tokenizer's own text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from models.components.text.detokenize import Detokenizer, Vocabulary
from models.components.text.tests import words
from serving.errors import SetupError

VOCABULARY = Vocabulary.of(words.tokenizer(), 450)
IDS = st.lists(st.integers(0, words.tokenizer().get_vocab_size() - 1), max_size=40)


@given(IDS)
def test_deltas_of_any_tokens_add_up_to_the_tokenizers_text(ids):
    reader = Detokenizer(VOCABULARY.pieces)
    deltas = [reader.feed(token) for token in ids]
    assert "".join(deltas) + reader.finish() == words.tokenizer().decode(ids, skip_special_tokens=True)


@given(st.text())
def test_text_survives_and_no_delta_has_half_a_character(text):
    reader = Detokenizer(VOCABULARY.pieces)
    deltas = [reader.feed(token) for token in words.encode(text)]
    assert "".join(deltas) == text
    assert reader.finish() == ""
    assert "�" in text or not any("�" in delta for delta in deltas)


def test_a_character_comes_with_its_last_token():
    emoji = "🦄"
    ids = words.encode(emoji)
    assert len(ids) > 1, "the tokenizer must not know it whole"
    reader = Detokenizer(VOCABULARY.pieces)
    assert [reader.feed(token) for token in ids] == [""] * (len(ids) - 1) + [emoji]
    reader.feed(ids[0])
    assert reader.pending
    assert reader.finish() == "�"


def test_special_tokens_and_gaps_say_nothing_and_marks_say_their_name():
    reader = Detokenizer(VOCABULARY.pieces)
    assert reader.feed_all([words.end(), 449]) == ""
    assert reader.feed_all(words.encode("<think>")) == "<think>"
    assert VOCABULARY.shown(words.end()) == words.END.encode()
    assert len(VOCABULARY) == 450


def test_another_kind_of_tokenizer_is_refused():
    other = Tokenizer(models.BPE())
    other.decoder = decoders.Metaspace()
    with pytest.raises(SetupError, match="Metaspace"):
        Vocabulary.of(other)
