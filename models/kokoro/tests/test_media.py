import numpy as np
import pytest

from models.kokoro import media

TEXT = "One two three, four five six seven. Eight nine ten. Eleven twelve. Thirteen fourteen fifteen sixteen."


def pieces(text, speed=1.0, first=20, target=40, phonemize=str.lower):
    return list(media.pieces(text, phonemize, speed, first, target))


def test_the_first_piece_is_a_clause_and_the_rest_are_packed_sentences():
    assert pieces(TEXT) == [
        "one two three,",
        "four five six seven.",
        "eight nine ten. eleven twelve.",
        "thirteen fourteen fifteen sixteen.",
    ]


@pytest.mark.parametrize("words", [[9, 30, 4, 40], [3, 3, 60, 60], [50, 2, 2, 2, 2, 50]])
def test_each_piece_is_made_before_those_ahead_of_it_have_been_played(words):
    """At the pace that is promised, of clauses of four words; the first piece is heard when it is made."""
    text = " ".join(", ".join(["aa bb cc dd"] * (n // 4)) + " ee" * (n % 4) + "." for n in words)
    first, *rest = map(len, pieces(text, first=50, target=150))
    made, played = 0.0, float(first)
    for size in rest:
        made += media.PACE * size
        assert made <= played
        played += size


def test_a_sentence_is_whole_where_there_is_time_for_it():
    clauses = "Aaa bbb ccc ddd, eee fff ggg hhh, iii jjj kkk lll"
    assert pieces(f"{'Word ' * 12}. {clauses}.", target=150)[-1] == f"{clauses.lower()}."


def test_a_short_first_sentence_stays_whole_and_alone():
    assert pieces("Hello, you. " + TEXT)[0] == "hello, you."


def test_an_opening_of_a_word_is_not_cut_off():
    assert pieces("Well, this sentence is rather long, as it happens.", target=80)[0] != "well,"


@pytest.mark.parametrize("speed", [0.25, 1.0, 4.0])
def test_no_piece_passes_the_window(speed):
    said = pieces("word " * 3000, speed=speed, first=50, target=510)
    assert "".join(said).replace(" ", "") == "word" * 3000
    assert max(map(len, said)) <= media.longest(speed)


def test_a_sentence_longer_than_the_window_is_cut_at_clauses():
    sentence = ", ".join(["a few words here"] * 60) + "."
    said = pieces(sentence, first=50, target=150)
    assert max(map(len, said)) <= 510
    assert all(piece.endswith((",", ".")) for piece in said)


def test_silent_parts_leave_no_piece():
    assert pieces("... !!! ???", phonemize=lambda text: "") == []
    assert pieces("") == []


def test_a_piece_is_worked_out_when_it_is_asked_for():
    asked = []

    def phonemize(part):
        asked.append(part)
        return part

    first = next(media.pieces("It rained. " * 1000, phonemize, 1.0, 20, 40))
    assert first == "It rained."
    assert len(asked) < 10


def test_tokens_stand_between_boundaries():
    assert np.array_equal(media.tokens("ab", {"a": 5, "b": 7}), [0, 5, 7, 0])
