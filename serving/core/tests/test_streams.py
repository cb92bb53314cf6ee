"""Chunk policies and stream buffers: whatever the arrivals, every item is given once, in order, and one end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.core.buffer import StreamBuffer
from serving.core.contract import Chunk, Edge
from serving.core.streams import Available, Each, First, Frames, Ramp, Sliding, Whole

SIZES = st.integers(1, 9)
POLICIES = st.one_of(
    st.just(Whole()),
    st.just(Each()),
    st.builds(Available, SIZES),
    st.builds(Frames, SIZES),
    st.builds(First, SIZES, SIZES),
    st.builds(Ramp, st.lists(SIZES, max_size=3).map(tuple), SIZES, st.integers(0, 5), st.integers(0, 4)),
    st.tuples(SIZES, SIZES).map(lambda pair: Sliding(max(pair), min(pair))),
)


def read(policy, arrivals, partial=None):
    """Every (chunk, items) that a consumer gets when `arrivals` items come at a time."""
    buffer, got, next_item = StreamBuffer(Edge("a.x", "b.y", policy)), [], 0
    for count in [*arrivals, None]:
        if count is None:
            buffer.end()
        else:
            buffer.write(np.arange(next_item, next_item + count), count)
            next_item += count
        while (chunk := buffer.ready()) is not None:
            got.append(buffer.take(chunk, partial))
            buffer.drop()
    return got, next_item, buffer


@given(POLICIES, st.lists(st.integers(0, 12), max_size=12))
def test_every_item_is_new_once_and_the_end_comes_once(policy, arrivals):
    got, total, buffer = read(policy, arrivals)
    fresh = [
        item
        for chunk, items in got
        for item in np.asarray(items if items is not None else [])[chunk.fresh - chunk.start : chunk.stop - chunk.start]
    ]
    assert fresh == list(range(total))
    assert [chunk.final for chunk, _ in got] == [False] * (len(got) - 1) + [True]
    assert not buffer.parts


@given(POLICIES, st.lists(st.integers(0, 12), max_size=12))
def test_windows_do_not_depend_on_how_items_arrive_where_the_policy_says_so(policy, arrivals):
    if isinstance(policy, Available):
        return  # gives what is there, by design
    one_by_one, *_ = read(policy, [1] * sum(arrivals))
    coalesced, *_ = read(policy, arrivals)
    assert [chunk for chunk, _ in coalesced] == [chunk for chunk, _ in one_by_one]


@given(POLICIES, st.lists(st.integers(0, 12), max_size=8))
def test_context_and_lookahead_are_the_neighbouring_items(policy, arrivals):
    got, *_ = read(policy, arrivals)
    for chunk, items in got:
        assert list(items if items is not None else []) == list(range(chunk.start, chunk.seen))


@given(st.lists(st.integers(0, 12), max_size=8), st.integers(1, 5))
def test_a_split_chunk_gives_its_items_in_parts(arrivals, units):
    got, total, _ = read(Whole(), arrivals, partial=units)
    assert [item for _, items in got for item in (items if items is not None else [])] == list(range(total))
    assert all(chunk.stop - chunk.fresh <= units for chunk, _ in got)
    assert [chunk.final for chunk, _ in got].count(True) == 1


def test_a_failed_step_gives_its_chunk_back():
    buffer = StreamBuffer(Edge("a.x", "b.y", Ramp((2,), 4, context=1)))
    buffer.write(np.arange(9), 9)
    buffer.take(buffer.ready())
    buffer.drop()
    before = buffer.state()
    first = buffer.take(buffer.ready())
    buffer.restore(before)
    again = buffer.take(buffer.ready())
    assert first[0] == again[0] == Chunk(1, 2, 6, 6, False)
    assert (first[1] == again[1]).all()


def test_ramp_grows_and_keeps_its_lookahead():
    got, *_ = read(Ramp((3, 5), 8, context=2, lookahead=1), [22])
    assert [(c.start, c.fresh, c.stop, c.seen, c.final) for c, _ in got] == [
        (0, 0, 3, 4, False),
        (1, 3, 8, 9, False),
        (6, 8, 16, 17, False),
        (14, 16, 22, 22, True),
    ]


def test_a_stream_cannot_be_written_after_its_end():
    buffer = StreamBuffer(Edge("a.x", "b.y", Each()))
    buffer.end()
    with pytest.raises(RuntimeError, match="after its stream ended"):
        buffer.write([1], 1)
