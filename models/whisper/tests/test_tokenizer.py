"""Ids, text and words equal openai-whisper's, for both vocabularies."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper.tokenizer import LANGUAGES as REFERENCE_LANGUAGES
from whisper.tokenizer import TO_LANGUAGE_CODE, get_tokenizer

from models.whisper.languages import LANGUAGES, language_code
from serving.errors import BadRequest

TEXTS = [
    " Hello, world! It's 9:45.",
    "  two  spaces\n\ttabs ",
    " naïve café, Straße; Ελλάδα, привет",
    " 你好，世界。こんにちは",
    " 🎉🎊 emoji 👩‍👩‍👧 family",
    "'s 'tis don't we'll",
    " -- (so) [it] {goes} ♪♪ la la ♪",
]


@pytest.fixture(scope="module")
def theirs(tiny):
    return get_tokenizer(tiny.is_multilingual, num_languages=tiny.num_languages, language="en")


def test_special_tokens(tokenizer, theirs):
    names = "eot sot translate transcribe sot_lm sot_prev no_speech no_timestamps"
    for name in names.split():
        assert getattr(tokenizer, name) == getattr(theirs, name), name
    assert tokenizer.timestamps == theirs.timestamp_begin
    assert tokenizer.start("en", "transcribe") == theirs.sot_sequence
    assert tokenizer.languages == tuple(REFERENCE_LANGUAGES)[: theirs.num_languages]


def test_suppressed_tokens(tokenizer, theirs):
    assert tokenizer.not_spoken == theirs.non_speech_tokens
    assert list(tokenizer.blanks) == [*theirs.encode(" "), theirs.eot]


@pytest.mark.parametrize("text", TEXTS)
def test_text_to_ids_and_back(tokenizer, theirs, text):
    ids = tokenizer.encode(text)
    assert ids == theirs.encode(text)
    assert tokenizer.decode(ids) == text
    for language in ("en", "zh"):
        theirs.language = language
        assert tokenizer.words([*ids, tokenizer.eot], language) == theirs.split_to_word_tokens([*ids, theirs.eot])


@settings(deadline=None, max_examples=150)
@given(ids=st.lists(st.integers(0, 50_255), max_size=12))
def test_any_ids_to_text_and_words(tokenizer, theirs, ids):
    theirs.language = "en"
    assert tokenizer.decode(ids) == theirs.decode(ids)
    if ids:
        ours = tokenizer.words([*ids, tokenizer.eot], "en")
        assert ours == theirs.split_to_word_tokens([*ids, theirs.eot])


def test_timestamps_have_no_text(tokenizer):
    ids = tokenizer.encode(" so")
    assert tokenizer.decode([tokenizer.timestamps, *ids, tokenizer.timestamps + 50]) == " so"


def test_special_tokens_in_text_are_refused(tokenizer):
    with pytest.raises(BadRequest, match=r"<\|endoftext\|>") as caught:
        tokenizer.encode(" a <|endoftext|> b", "prompt")
    assert caught.value.param == "prompt"


def test_language_names():
    assert list(LANGUAGES.items()) == list(REFERENCE_LANGUAGES.items())
    for name, code in TO_LANGUAGE_CODE.items():
        assert language_code(name.title()) == code
    assert language_code("klingon") is None
