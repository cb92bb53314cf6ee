"""Thoughts: the same split for every chunking."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.components.text.reasoning import Reasoning

TEXT = st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", "a", " ", "\n", "ink>"]), max_size=10).map("".join)


def split(text, cuts, inside):
    reader, at, thought, said = Reasoning(inside), 0, "", ""
    for cut in [*sorted(cut % (len(text) + 1) for cut in cuts), len(text)]:
        more = reader.feed(text[at:cut])
        thought, said, at = thought + more[0], said + more[1], cut
    more = reader.finish()
    return thought + more[0], said + more[1]


@given(TEXT, st.lists(st.integers(0, 200), max_size=12), st.booleans())
def test_the_split_does_not_depend_on_the_pieces(text, cuts, inside):
    assert split(text, cuts, inside) == split(text, (), inside)


@pytest.mark.parametrize(
    ("text", "inside", "expected"),
    [
        ("hm\n</think>\n\nYes.", True, ("hm", "Yes.")),
        ("<think>\nhm\n</think>\n\nYes.", False, ("hm", "Yes.")),
        ("<think>\nhm\n</think>\n\nYes.", True, ("<think>\nhm", "Yes.")),
        ("No <think> here </think>", False, ("", "No <think> here </think>")),
        ("  Yes.", False, ("", "  Yes.")),
        ("never ends </th", True, ("never ends </th", "")),
        ("</think>", True, ("", "")),
        ("<thi", False, ("", "<thi")),
    ],
)
def test_where_a_thought_begins_and_ends(text, inside, expected):
    assert split(text, range(len(text)), inside) == expected
