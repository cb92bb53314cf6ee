"""Bisection names the very layer of Kokoro in which a fault of the catalogue was planted.

The reference cannot be made small, so the taps are the small network's own, recorded without a fault.
"""

import pytest
import torch

from models.kokoro.layers import AdaIN1d, AdainResBlk1d, BiLSTM, Span
from models.kokoro.prosody import DurationEncoder, TextEncoder
from models.kokoro.tests import tiny
from models.kokoro.tests.test_swift import inputs
from models.kokoro.vocoder import SnakeBlock
from parity.harness import compare, faults
from parity.harness.bisect import Bisector
from parity.harness.cases import load_case
from parity.harness.record import Recording

KEY = "kokoro"
FRAMES = 1
NEAR = 1e-5  # a layer alone is given contiguous tensors, and adds in another order
# An ALBERT's epsilons are 1e-12, and a row without padding has nothing to mask: neither fault moves anything here.
UNSEEN = {"wrong epsilon", "wrong mask"}


def span(size):
    return Span.of(torch.tensor([size]), size)


# How a layer is called alone: on the reference's tensors, and over rows without padding.
CALLS = {
    AdaIN1d: lambda layer, x, style: (x, style, span(x.shape[2])),
    BiLSTM: lambda layer, x: (x, span(x.shape[1])),
    AdainResBlk1d: lambda layer, x, style: (x, style, span(x.shape[2]), span(x.shape[2] * (1 + layer.upsample))),
    SnakeBlock: lambda layer, x, style: (x, style, span(x.shape[2])),
    TextEncoder: lambda layer, tokens: (tokens, span(tokens.shape[1])),
    DurationEncoder: lambda layer, x, style: (x, style, span(x.shape[1])),
}


def adapter(layer):
    return lambda given: (CALLS[type(layer)](layer, *(given[f"[{i}]"] for i in range(len(given)))), {})


@pytest.fixture(scope="module")
def net():
    return tiny.network()


@pytest.fixture(scope="module")
def run(net):
    given, tokens = inputs(FRAMES), torch.tensor([[0, 5, 9, 2, 17, 0]])
    style = torch.randn(1, 16, generator=torch.Generator().manual_seed(1))

    def both_halves():
        net.text_half(tokens, torch.tensor([tokens.shape[1]]), style, torch.ones(1))
        net.frame_half(*given)

    return both_halves


@pytest.fixture(scope="module")
def bisector(net, run, tmp_path_factory):
    pen = Recording("taps", {})
    with torch.no_grad(), pen.taps(net):
        run()
    root = tmp_path_factory.mktemp("oracles")
    pen.write(root / KEY / "cases" / "taps", KEY, references={}, recorder="", recorded={})
    adapters = {path: adapter(layer) for path, layer in net.named_modules() if type(layer) in CALLS}
    case = load_case(root, KEY, "taps")
    return Bisector(case, net, adapters=adapters, by=lambda _, a, b: compare(a, b, "max_abs", NEAR))


def one_of_each(net, run):
    """One planted fault of every kind in every kind of layer."""
    with torch.no_grad():
        found = faults.plantable(net, run)
    kinds = {(one.fault, type(net.get_submodule(one.path))): one for one in found if one.path}
    return [one for one in kinds.values() if one.fault not in UNSEEN]


def test_kokoro_without_a_fault_has_no_divergence(bisector, run):
    found = bisector.run(run)
    assert found, str(found)
    assert not found.untouched


def test_kokoro_bisects_every_kind_of_fault_to_its_layer(net, bisector, run):
    wrong, planted = {}, one_of_each(net, run)
    assert len({one.fault for one in planted}) >= 6
    for one in planted:
        with one.plant():
            found = bisector.run(run)
        named = found.first.path.partition("#")[0] if found.first else "nothing"
        if named != one.path:
            wrong[str(one)] = named
    assert not wrong
