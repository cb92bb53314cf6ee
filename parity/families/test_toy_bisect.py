"""Bisection names the layer of the toy in which a fault of the catalogue was planted.

Torch's attention layer has no taps of its own inside, so what is wrong there is the block's: it alone, on the
reference's input, is wrong, and the first tap to differ is that of the attention's output.
"""

from types import SimpleNamespace

import pytest

from parity.families import test_toy as toy
from parity.harness import compare, faults
from parity.harness.bisect import Bisector
from parity.harness.taps import Names

KEY = "toy"
RULES = (("blocks.*.out", "layers.*.self_attn"), *toy.RULES)
ATTENTION = ("qkv", "out")
NEAR = 1e-5  # torch's layer adds in another order


@pytest.fixture
def case(oracle):
    return oracle(KEY, "tiny")


@pytest.fixture
def net(case):
    return toy.loaded(case).model.net.speaker


@pytest.fixture
def run(net, case):
    return toy.forward(SimpleNamespace(speaker=net), case)


@pytest.fixture
def bisector(case, net):
    adapters = {"blocks.*": lambda given: ((given["[0]"], 0, toy.attend), {})}
    return Bisector(case, net, Names(RULES), adapters=adapters, by=lambda _, a, b: compare(a, b, "max_abs", NEAR))


def named(bisector, run, *, whole=False):
    """The layer that a bisection names; `whole`: the first tap to differ."""
    found = bisector.run(run)
    rows = [row for row in found.rows if not row.whole] if whole else [found.first]
    return rows[0].path if rows and rows[0] else "nothing"


def test_toy_without_a_fault_has_no_divergence(bisector, run):
    found = bisector.run(run)
    assert found, str(found)


def test_toy_bisects_every_planted_fault_to_its_layer(net, bisector, run):
    planted = [one for one in faults.plantable(net, run) if one.path]
    assert len({one.fault for one in planted}) >= 4
    wrong = {}
    for one in planted:
        block, _, layer = one.path.rpartition(".")
        with one.plant():
            found, first = named(bisector, run), named(bisector, run, whole=True)
        expected = block if layer in ATTENTION else one.path
        if found != expected or (layer in ATTENTION and first != f"{block}.out"):
            wrong[str(one)] = found, first
    assert not wrong
