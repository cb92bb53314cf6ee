"""Which bucket holds a step."""

import numpy as np
import pytest

from serving.capture import Runner
from serving.core.contract import Node, Options


class Uniform(Node):
    """Rows of 10 or 15 units."""

    buckets = ((1, 10), (1, 15), (2, 20), (2, 30), (4, 40), (4, 60))
    uniform = True


class Packed(Node):
    buckets = ((2, 20), (4, 60))


def held(node, rows, units):
    runner = Runner(node, Options(capture="static"))
    frame = runner.frame(np.arange(1, rows + 1), units)
    return (frame.rows, frame.units), runner.misses


@pytest.mark.parametrize(
    ("rows", "each", "bucket"),
    [(1, 10, (1, 10)), (1, 15, (1, 15)), (2, 15, (2, 30)), (3, 10, (4, 40)), (3, 15, (4, 60))],
)
def test_a_uniform_nodes_bucket_has_rows_of_the_steps_own_length(rows, each, bucket):
    assert held(Uniform(), rows, rows * each) == (bucket, 0)


@pytest.mark.parametrize(("rows", "each"), [(1, 20), (1, 12), (5, 10)])
def test_a_uniform_step_that_no_bucket_holds_is_counted(rows, each):
    assert held(Uniform(), rows, rows * each) == ((rows, rows * each), 1)


@pytest.mark.parametrize(
    ("rows", "units", "found"), [(1, 20, ((2, 20), 0)), (2, 21, ((4, 60), 0)), (4, 61, ((4, 61), 1))]
)
def test_a_packed_nodes_bucket_has_room_for_all_units(rows, units, found):
    assert held(Packed(), rows, units) == found
