"""Numerics: kernels whose rows do not depend on each other, a probe that notices, settings that are put back."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from serving import numerics
from serving.errors import SetupError


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(numerics, "_proven", {})
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def rows_differ(op, x):
    """Counts of leading rows at which a row's bits differ from the whole batch's."""
    whole = op(x)
    return [n for n in range(1, len(x)) if not torch.equal(op(x[:n]), whole[:n])]


@pytest.mark.parametrize("shape", [(384, 1536), (1536, 384), (7, 13), (1, 5), (64, 1000)])
@pytest.mark.parametrize("bias", [True, False])
def test_invariant_linears_do_not_depend_on_the_number_of_rows(shape, bias):
    net = nn.Linear(*shape, bias=bias)
    x = torch.randn(40, shape[0])
    want = F.linear(x, net.weight, net.bias)
    numerics.prepare({"net": net}, "invariant")
    assert rows_differ(net, x) == []
    torch.testing.assert_close(net(x), want, atol=2e-5, rtol=1e-5)
    assert torch.equal(net(x.view(2, 4, 5, -1)), net(x).view(2, 4, 5, -1))
    assert net(x[:0]).shape == (0, shape[1])


def test_torchs_own_linear_depends_on_the_number_of_rows():
    """The reason for all this; when it fails, the mode has become free."""
    assert rows_differ(nn.Linear(384, 1536), torch.randn(40, 384))


def test_tiles_hold_where_packing_does_not(monkeypatch):
    monkeypatch.setattr(numerics, "_same_rows", lambda *_: False)
    net = nn.Linear(384, 384)
    x = torch.randn(40, 384)
    want = net(x)
    numerics.prepare({"net": net}, "invariant")
    assert isinstance(net.forward, numerics.Tiles)
    assert rows_differ(net, x) == []
    torch.testing.assert_close(net(x), want, atol=2e-5, rtol=1e-5)


def test_the_trial_refuses_a_kernel_that_depends_on_the_number_of_rows():
    net = nn.Linear(384, 1536)
    assert not numerics._holds(net, net)


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.Conv1d(1, 1, 3, stride=2, padding=1), (1, 50)),
        (nn.Conv1d(8, 16, 3), (8, 33)),
        (nn.ConvTranspose1d(8, 4, 4, stride=2), (8, 21)),
        (nn.Conv2d(3, 8, 3), (3, 12, 10)),
    ],
)
def test_convolutions_run_one_sample_at_a_time(net, shape):
    x = torch.randn(6, *shape)
    want = net(x)
    numerics.prepare({"net": net}, "invariant")
    assert rows_differ(net, x) == []
    torch.testing.assert_close(net(x), want, atol=1e-5, rtol=1e-5)
    assert torch.equal(net(x[0]), net(x[:1])[0]), "a sample without a batch"


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrences_run_one_sequence_at_a_time(kind, batch_first):
    net = kind(24, 32, batch_first=batch_first, bidirectional=True)
    x = torch.randn(5, 11, 24)
    x = x if batch_first else x.transpose(0, 1)
    state = torch.randn(2, 5, 32)
    state = (state, state + 1) if kind is nn.LSTM else state
    want, last = net(x, state)
    numerics.prepare({"net": net}, "invariant")
    got, held = net(x, state)
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(held, last, atol=1e-6, rtol=1e-5)
    dim = 0 if batch_first else 1
    alone = net(x.narrow(dim, 3, 1))[0]
    assert torch.equal(net(x)[0].narrow(dim, 3, 1), alone)


@pytest.mark.parametrize("net", [nn.SiLU(), nn.GELU("tanh"), nn.Softplus(), nn.GELU()])
def test_activations_do_not_depend_on_where_an_element_lies(net):
    x = torch.randn(9, 13)
    want = net(x)
    numerics.prepare({"net": net}, "invariant")
    assert rows_differ(net, x) == []
    torch.testing.assert_close(net(x), want, atol=1e-6, rtol=1e-5)
    numerics.probe({"net": net}, "invariant")


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.norm(self.embed(ids)))


def test_names_parameters_and_ties_stay():
    net = Tied()
    before = {name: value.data_ptr() for name, value in net.state_dict().items()}
    numerics.prepare({"net": net}, "invariant")
    numerics.prepare({"net": net}, "invariant")
    assert {name: value.data_ptr() for name, value in net.state_dict().items()} == before
    assert isinstance(net.head.forward, numerics.Packed)
    ids = torch.arange(20)
    assert rows_differ(net, ids) == []
    numerics.probe({"net": net}, "invariant")


def test_the_probe_names_the_module_that_fails():
    net = nn.Sequential(nn.LayerNorm(384), nn.Linear(384, 1536))
    numerics.probe({"decoder": net}, "fast")
    with pytest.raises(SetupError, match=r"decoder\.1: its result for a row depends on the batch"):
        numerics.probe({"decoder": net}, "invariant")
    numerics.prepare({"decoder": net}, "invariant")
    numerics._proven.clear()
    numerics.probe({"decoder": net}, "invariant")


def test_the_probe_notices_an_operation_that_mixes_rows(monkeypatch):
    monkeypatch.setitem(numerics.FUNCTIONS, "softmax", (lambda x: x / x.abs().sum(), 67))
    with pytest.raises(SetupError, match="softmax"):
        numerics.probe({}, "invariant")


def test_refuses_what_it_cannot_keep():
    with pytest.raises(SetupError, match='Did you mean "invariant"'):
        numerics.prepare({}, "invariance")
    with pytest.raises(SetupError, match=r"net\.0 has torch\.bfloat16"):
        numerics.prepare({"net": nn.Sequential(nn.Linear(4, 4)).bfloat16()}, "invariant")
    with pytest.raises(SetupError, match="MultiheadAttention"):
        numerics.prepare({"net": nn.MultiheadAttention(8, 2)}, "invariant")


def test_fast_computes_in_bfloat16_whether_or_not_this_cpu_packs_it():
    head = nn.Linear(64, numerics.LARGE // 64, bias=False).to(torch.bfloat16)
    x = torch.randn(5, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(1))
    expected = head(x)
    numerics.prepare({"head": head}, "fast")
    for rows in (1, 2, 5):
        assert (head(x[:rows]) - expected[:rows]).abs().max() <= 0.05


def test_fast_packs_large_heads_only():
    small, large = nn.Linear(64, 64), nn.Linear(64, numerics.LARGE // 64)
    x = torch.randn(3, 64)
    want = large(x)
    numerics.prepare({"small": small, "large": large}, "fast")
    assert not isinstance(small.forward, numerics.Packed)
    torch.testing.assert_close(large(x), want, atol=1e-5, rtol=1e-5)
    assert isinstance(large.forward, numerics.Packed)
