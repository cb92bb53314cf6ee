"""Positions: counters, and M-RoPE with three axes and an offset by slot."""

from __future__ import annotations

import numpy as np

from serving.resources import Positions
from serving.resources.tests.batches import batch

BOTH = ("cond", "uncond")


def test_counts_by_slot_over_lanes_and_padding():
    positions = Positions(slots=3, lanes=BOTH)
    got = positions.plan(batch([2, 1], [3, 2], [BOTH, ("cond",)], size=3, total=10), write=True)
    assert got.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 0, 0]
    b = batch([1, 2], [1, 1], [("cond",), BOTH])
    assert positions.plan(b, write=True).tolist() == [2, 3, 3]
    positions.commit(b, np.array([0, 1]))
    assert positions.plan(b, write=False).tolist() == [2, 4, 4]
    positions.bind(2, "next")
    assert positions.plan(batch([2], [1], [BOTH]), write=True).tolist() == [0, 0]


def test_three_axes_with_an_offset_after_the_prompt():
    positions = Positions(slots=2, axes=3)
    image = np.array([[0, 1, 1, 1, 1, 3], [0, 1, 1, 2, 2, 3], [0, 1, 2, 1, 2, 3]])
    positions.set(1, image)
    first = positions.plan(batch([1, 2], [4, 2]), write=True)
    assert first.tolist() == [[*axis[:4], 0, 1] for axis in image.tolist()]
    second = positions.plan(batch([2, 1], [1, 3]), write=True)
    assert second.tolist() == [[2, *axis[4:], 4] for axis in image.tolist()]
    assert positions.plan(batch([1], [1]), write=True).tolist() == [[5]] * 3


def test_a_row_that_resumes_goes_on_where_it_was():
    positions = Positions(slots=2, axes=3)
    assert positions.reserve("a", ("main",), 1)
    positions.bind(1, "a")
    positions.set(1, np.array([[0, 5], [0, 5], [0, 5]]))
    positions.adopt("a", {}, 4)
    state = positions.save("a")
    positions.bind(1, "b")
    positions.bind(2, "a")
    positions.restore("a", state)
    assert positions.plan(batch([2], [1]), write=True).tolist() == [[8]] * 3
