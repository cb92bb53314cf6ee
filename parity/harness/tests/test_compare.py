"""Comparators: values by hand, truth by direction, and the bound that a failure names really passes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parity.harness.compare import METRICS, compare, meets, metric

NUMERIC = ("exact", "max_abs", "mean_abs", "max_rel", "ulp", "cosine", "nmse", "snr")
A = torch.tensor([[1.0, 2.0], [4.0, -8.0]])


def nudged(**at):
    changed = A.clone()
    for where, value in at.items():
        changed[int(where[1]), int(where[2])] = value
    return changed


@pytest.mark.parametrize(
    ("name", "value", "worst"),
    [
        ("exact", 2.0, (1, 1)),
        ("max_abs", 2.0, (1, 1)),
        ("mean_abs", 0.625, (1, 1)),
        ("max_rel", 0.5, (0, 0)),
        ("nmse", (0.25 + 4.0) / 85.0, (1, 1)),
        ("snr", 10 * math.log10(85.0 / 4.25), (1, 1)),
    ],
)
def test_values_by_hand(name, value, worst):
    result = compare(A, nudged(i00=1.5, i11=-6.0), name, bound=0.0)
    assert result.observed == pytest.approx(value)
    assert result.worst == worst
    assert result.expected == A[worst].item()


@pytest.mark.parametrize("name", NUMERIC)
def test_a_failure_names_a_bound_that_passes(name):
    metric_ = metric(name)
    hopeless = -1.0 if metric_.better == "lower" else 1e9
    failed = compare(A, nudged(i00=1.0 + 1e-5, i10=4.1), name, bound=hopeless)
    assert not failed
    assert compare(A, nudged(i00=1.0 + 1e-5, i10=4.1), name, bound=failed.passing)
    assert "smallest passing tolerance" in str(failed)


def test_equal_tensors_pass_every_metric_at_its_best():
    best = {"cosine": 1.0, "snr": math.inf}
    for name in NUMERIC:
        assert compare(A, A.clone(), name, bound=best.get(name, 0.0)), name


def test_exact_is_about_bits():
    zero = torch.tensor([0.0])
    assert not compare(zero, -zero, "exact")
    assert compare(zero, -zero, "max_abs")
    assert compare(torch.tensor([math.nan]), torch.tensor([math.nan]), "exact")


def test_ulp_counts_neighbours_across_zero():
    one = torch.tensor([1.0])
    up = torch.nextafter(torch.nextafter(one, torch.tensor([2.0])), torch.tensor([2.0]))
    assert compare(one, up, "ulp").observed == 2
    tiny = torch.nextafter(torch.tensor([0.0]), torch.tensor([1.0]))
    assert compare(tiny, -tiny, "ulp").observed == 2
    assert compare(torch.tensor([0.0]), torch.tensor([-0.0]), "ulp").observed == 0
    half = torch.tensor([1.0], dtype=torch.bfloat16)
    assert compare(half, half + 2**-7, "ulp").observed == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", NUMERIC[1:])
def test_a_value_that_is_not_finite_never_passes(name, bad):
    bound = -1e9 if metric(name).better == "higher" else 1e30
    result = compare(A, nudged(i01=bad), name, bound=bound)
    assert not result, result


def test_shapes_and_dtypes_are_part_of_the_answer():
    assert "shapes differ" in str(compare(A, A[:1], "max_abs", bound=9.0))
    assert "dtypes differ" in str(compare(A, A.double(), "max_abs", bound=9.0))
    assert not compare(A, A.double(), bound=9.0)


def test_cosine_of_a_scaled_tensor_is_one_and_of_a_negated_one_minus_one():
    assert compare(A, A * 3, "cosine", bound=1.0)
    assert compare(A, -A, "cosine", bound=-1.0).observed == pytest.approx(-1.0)


def test_integers_and_booleans_compare():
    ids = torch.tensor([3, 5])
    assert compare(ids, torch.tensor([3, 7]), "max_abs").observed == 2
    assert compare(ids > 3, ids > 3, "exact")


@pytest.mark.parametrize(("better", "inside", "outside"), [("lower", 1.0, 1.5), ("higher", 1.0, 0.5)])
def test_a_bound_is_met_from_its_own_side(better, inside, outside):
    assert meets(better, inside, 1.0)
    assert not meets(better, outside, 1.0)
    assert not meets(better, math.nan, 1.0)


def test_unknown_metric_names_the_nearest():
    with pytest.raises(KeyError, match="max_abs"):
        compare(A, A, "max_ab")


@given(st.floats(1e-12, 1e6), st.floats(1.0, 50.0))
def test_rounding_never_gives_a_bound_that_fails(value, factor):
    for m in METRICS.values():
        observed = min(value, 1.0) if m.better == "higher" and not m.decibel else value
        assert m.passes(observed, m.rounded(observed, factor)), m.name


def test_slack_is_a_ratio_in_each_direction():
    assert metric("max_abs").slack(1e-6, 1e-4) == pytest.approx(100)
    assert metric("snr").slack(80.0, 40.0) == pytest.approx(100)
    assert metric("cosine").slack(1 - 1e-6, 1 - 1e-4) == pytest.approx(100)
    assert metric("exact").slack(0, 0) == 1
    assert metric("max_abs").slack(0, 1e-6) == math.inf
