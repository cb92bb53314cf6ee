"""Stop strings: no character of one leaves, whatever the pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.components.text.stops import StopStrings, overlap

LETTERS = "abc\n"
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4)


def first_stop(text, stops):
    """Where the first stop to be complete begins, found letter by letter; None: there is none."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end - max(map(len, found)), max(found, key=len)
    return None


@given(st.lists(st.text(LETTERS, max_size=6), max_size=12), STOPS)
def test_deltas_add_up_to_the_text_before_the_first_stop(pieces, stops):
    watch, text = StopStrings(stops), "".join(pieces)
    sent = [watch.feed(piece) for piece in pieces]
    found = first_stop(text, stops)
    if found is None:
        assert "".join(sent) + watch.finish() == text
        assert watch.found is None
    else:
        assert "".join(sent) == text[: found[0]]
        assert watch.found == found[1]
        assert watch.finish() == ""


@given(st.lists(st.text(LETTERS, max_size=3), max_size=12), STOPS)
def test_nothing_waits_that_could_not_be_a_stop(pieces, stops):
    watch, text = StopStrings(stops), ""
    for piece in pieces:
        watch.feed(piece)
        text += piece
        if watch.found is None:
            assert watch.held == max((overlap(text, stop) for stop in stops), default=0)


def test_an_empty_stop_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopStrings([""])
