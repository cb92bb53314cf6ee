import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.components.text.sentences import fitting, packed, sentences


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("One", ["One"]),
        ("One. Two! Three?", ["One. ", "Two! ", "Three?"]),
        (
            "Dr. Smith met J. K. Rowling at 9:45. It cost $3.50.",
            ["Dr. Smith met J. K. Rowling at 9:45. ", "It cost $3.50."],
        ),
        ("So did I. You too.", ["So did I. ", "You too."]),
        ("At 5 p.m. sharp. Then home.", ["At 5 p.m. sharp. ", "Then home."]),
        ('"Go!" She went.', ['"Go!" ', "She went."]),
        ("Wait... what? Yes", ["Wait... what? ", "Yes"]),
        ("A title\n\nThe text", ["A title\n\n", "The text"]),
        ("e.g.\n\nNext", ["e.g.\n\n", "Next"]),
        ("こんにちは。元気ですか？はい", ["こんにちは。", "元気ですか？", "はい"]),
        ("Say [v. 2](/vˈɜɹʒən tˈu/) now. Ok", ["Say [v. 2](/vˈɜɹʒən tˈu/) now. ", "Ok"]),
        ("version 1.2.3 is out", ["version 1.2.3 is out"]),
    ],
)
def test_sentences(text, wanted):
    assert sentences(text) == wanted


TEXTS = st.text(alphabet="ab. ,;!?\n\"'[]()/—。、1Dr", max_size=80)


@given(TEXTS)
def test_no_character_is_lost(text):
    assert "".join(sentences(text)) == text


@given(TEXTS, st.integers(1, 20))
def test_parts_fit_and_lose_nothing(text, limit):
    parts = fitting(text, limit)
    assert "".join(parts) == text
    assert all(0 < len(part) <= limit for part in parts)


def test_clauses_before_words_before_a_hard_cut():
    assert fitting("one two, three four", 12) == ["one two, ", "three four"]
    assert fitting("one two three", 8) == ["one two ", "three"]
    assert fitting("abcdefgh", 4) == ["abcd", "efgh"]
    assert fitting("say [a b](/c d/) x", 14) == ["say ", "[a b](/c d/) x"]


def test_a_measure_of_ones_own():
    assert fitting("aa b aa", 2, lambda text: text.count("a")) == ["aa b ", "aa"]


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 40), st.integers(1, 60))
def test_packing_keeps_all_in_order(sizes, first, target):
    counts = packed(sizes, first, target)
    assert sum(counts) == len(sizes)
    assert all(count > 0 for count in counts)
    start = 0
    for i, count in enumerate(counts):
        if count > 1:
            assert sum(sizes[start : start + count]) <= (target if i else first)
        start += count


def test_the_first_group_is_short():
    assert packed([10, 10, 10, 10, 10], first=10, target=30) == [1, 3, 1]


def test_long_texts_are_quick():
    began = time.perf_counter()
    text = "This is a sentence, and it is one of many. " * 3000
    assert len(sentences(text)) == 3000
    assert "".join(fitting("x" * 100_000, 500)) == "x" * 100_000
    assert time.perf_counter() - began < 5
