"""Taps in execution order, and bisection that names the very layer in which each fault of the catalogue was
planted.
"""

import numpy as np
import pytest
import torch
from torch import nn

from parity.harness import faults
from parity.harness.bisect import Bisector, bisect
from parity.harness.cases import load_case
from parity.harness.compare import compare
from parity.harness.numerics import EXACT, applied
from parity.harness.taps import Names, recording
from parity.harness.tests import toy


@pytest.fixture(autouse=True)
def flags():
    with applied(EXACT):
        yield


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    root = tmp_path_factory.mktemp("oracles")
    toy.record(root / "toy/cases/tiny")
    return load_case(root, "toy", "tiny")


MODEL, _ = toy.loaded()
FAULTS = faults.plantable(MODEL, lambda: MODEL(toy.IDS))


def test_taps_are_in_execution_order_with_calls_numbered():
    net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.GELU(), nn.Linear(2, 2)))
    with recording(net, prefix="net") as trace:
        net(net(torch.ones(1, 2)))
    once = ["net.0", "net.1.0", "net.1.1", "net.1", "net"]
    assert list(trace.tensors()) == [*once, *(f"{name}#2" for name in once)]
    assert torch.equal(trace.inputs()["net#2:in[0]"], trace.tensors()["net"])


def test_a_change_in_place_does_not_reach_a_tap():
    net = nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))
    with recording(net) as trace:
        net(torch.tensor([-1.0, 2.0]))
    assert trace.tensors()["0"].tolist() == [-1.0, 2.0]
    assert trace.inputs()["1:in[0]"].tolist() == [-1.0, 2.0]


def test_hooks_are_gone_afterwards():
    with recording(MODEL):
        pass
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in MODEL.modules())


def test_names_follow_the_first_rule_that_fits():
    names = Names([("layers.*.fc1", "blocks.*.mlp.0"), ("layers.*", "blocks.*"), ("norm", "ln_post")])
    assert names.theirs("layers.3.fc1") == "blocks.3.mlp.0"
    assert names.theirs("layers.12.attn.q#2") == "blocks.12.attn.q#2"
    assert names.theirs("layers.0:in[0]") == "blocks.0:in[0]"
    assert names.theirs("normal") == "normal"


def test_an_equal_port_has_no_divergence(case):
    found = bisect(case, MODEL, lambda: MODEL(case["ids"]), prefix="toy")
    assert found, found
    assert not found.untouched
    assert len(found.rows) > 30


@pytest.mark.parametrize("planted", FAULTS, ids=str)
def test_every_fault_is_named_at_its_own_layer(case, planted):
    with planted.plant():
        found = bisect(case, MODEL, lambda: MODEL(case["ids"]), prefix="toy")
    assert not found
    assert found.first.verdict == "wrong here"
    path = f"toy.{planted.path}".strip(".")
    # The fault may sit in a child that has no name of its own in the catalogue: a table, a projection.
    assert found.first.path in (path, f"{path}.positions", f"{path}.gate_proj"), f"{planted}\n{found}"


def test_every_fault_of_the_catalogue_that_is_about_modules_applies_to_the_toy():
    callables = {"dropped last chunk", "off-by-one frame", "shared seed"}
    assert {planted.fault for planted in FAULTS} == set(faults.CATALOGUE) - callables


def test_faults_leave_nothing_behind(case):
    before = {name: tensor.clone() for name, tensor in MODEL.state_dict().items()}
    for planted in FAULTS:
        with planted.plant():
            pass
    assert all(torch.equal(before[name], tensor) for name, tensor in MODEL.state_dict().items())
    with torch.no_grad():
        assert compare(case["logits"], MODEL(case["ids"]), "exact")


def test_a_gate_that_is_too_wide_is_shown_to_miss_faults(case):
    def gate(bound):
        with torch.no_grad():
            return compare(case["logits"], MODEL(case["ids"]), "max_abs", bound)

    run = lambda: MODEL(case["ids"])  # noqa: E731
    assert faults.uncaught(MODEL, run, lambda: gate(0.0)) == []
    assert {p.fault for p in faults.uncaught(MODEL, run, lambda: gate(1e-3))} == {"wrong epsilon"}
    with pytest.raises(AssertionError, match="without any fault"):
        faults.uncaught(MODEL, run, lambda: False)


def test_names_that_differ_are_mapped_and_inheriting_layers_are_told_apart(case):
    class Port(nn.Module):
        def __init__(self, original):
            super().__init__()
            self.body = original

        def forward(self, ids):
            return self.body(ids)

    port = Port(MODEL)
    rules = [("body.blocks.*", "toy.blocks.*"), ("body", "toy")]
    at_head = next(p for p in FAULTS if p.path == "blocks.0.attention.out" and p.fault == "transposed weight")
    with at_head.plant():
        found = bisect(case, port, lambda: port(case["ids"]), rules=rules)
    assert found.first.path == "body.blocks.0.attention.out"
    verdicts = {row.tap: row.verdict for row in found.rows}
    assert verdicts["toy.blocks.0.attention.value"] == "equal"
    assert verdicts["toy.blocks.1.mlp"] == "inherited"
    assert "first divergence: body.blocks.0.attention.out (wrong here)" in str(found)


def test_a_layer_with_another_signature_needs_an_adapter(case):
    class Swapped(nn.Module):
        def __init__(self, norm):
            super().__init__()
            self.norm = norm

        def forward(self, *, hidden):
            return self.norm(hidden) + 1.0

    model, _ = toy.loaded()
    model.blocks[0].norm = Swapped(model.blocks[0].norm)
    block = model.blocks[0]
    block.forward = lambda x: (x := x + block.attention(block.norm(hidden=x))) + block.mlp(block.post(x))
    run = lambda: model(case["ids"])  # noqa: E731
    rows = {row.tap: row for row in bisect(case, model, run, prefix="toy").rows}
    assert rows["toy.blocks.0.norm"].verdict == "differs"
    adapters = {"toy.blocks.*.norm": lambda inputs: ((), {"hidden": inputs["[0]"]})}
    bisector = Bisector(case, model, prefix="toy", adapters=adapters)
    rows = {row.tap: row for row in bisector.run(run).rows}
    assert rows["toy.blocks.0.norm"].verdict == "wrong here"


class Chunker:
    """Stands for a port's host code."""

    def chunks(self, items, size):
        return [items[i : i + size] for i in range(0, len(items), size)]

    def frames(self, audio):
        return np.asarray(audio).reshape(2, -1)

    def noise(self, n, seed):
        return np.random.default_rng(seed).random(n)

    def rope(self, positions):
        return positions * 2


def test_faults_of_callables():
    code = Chunker()
    with faults.planted(code, "chunks", faults.dropped_last_chunk):
        assert code.chunks([1, 2, 3], 2) == [[1, 2]]
    with faults.planted(code, "frames", faults.off_by_one_frame):
        assert code.frames([1, 2, 3, 4]).tolist() == [[2, 1], [4, 3]]
    with faults.planted(code, "noise", faults.shared_seed()):
        assert (code.noise(3, 7) == code.noise(3, seed=8)).all()
    with faults.planted(code, "rope", faults.off_by_one_position()):
        assert code.rope(np.array([0, 1])).tolist() == [2, 4]
    assert code.chunks([1, 2, 3], 2) == [[1, 2], [3]]
    with pytest.raises(TypeError, match="no parameter 'seed'"):
        faults.shared_seed()(code.chunks)
