"""A convolution by transforms is torch's, at every length, dilation and grouping."""

import pytest
import torch
import torch.nn.functional as F

from models.components.layers.crew import Crew, Workspace
from models.components.layers.fourier import FourierConv1d, transforms

CREW = Crew()


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(5)
        yield


@pytest.mark.parametrize("tile", [4, 5, 12, 31, 32])
def test_the_matrices_give_a_cyclic_convolution(tile):
    data, kernel, result = map(torch.from_numpy, transforms(tile))
    x, w = torch.randn(2, tile, dtype=torch.float64)
    shifts = torch.stack([x.roll(n)[:tile] for n in range(tile)])
    torch.testing.assert_close(result @ ((data @ x) * (kernel @ w)), w @ shifts)


def run(conv, x, work, add=None):
    """x [T, C] through the convolution, between rubbish that must not matter past what is read."""
    count = len(x)
    padded = torch.zeros(conv.read(count) + 3, x.shape[1])
    padded[conv.pad : conv.pad + count] = x
    out = torch.zeros(conv.written(count), conv.outputs)
    if add is None:
        conv(padded, count, out, CREW, work)
    else:
        out[:count] = add
        conv.add(padded, count, out, CREW, work)
    return out[:count]


@pytest.mark.parametrize("count", [1, 7, 40, 333])
@pytest.mark.parametrize(("taps", "dilation", "tile"), [(3, 1, 12), (3, 5, 12), (7, 3, 24), (11, 1, 32), (11, 5, 24)])
def test_it_is_torchs_convolution(count, taps, dilation, tile):
    weight, bias, x = torch.randn(6, 4, taps), torch.randn(6), torch.randn(count, 4)
    conv = FourierConv1d(weight, bias, dilation, tile, group=3)
    ours = run(conv, x, Workspace())
    theirs = F.conv1d(x.double().t()[None], weight.double(), bias.double(), padding=conv.pad, dilation=dilation)
    torch.testing.assert_close(ours.double(), theirs[0].t(), atol=5e-5, rtol=0)


def test_it_adds_to_what_is_there():
    conv = FourierConv1d(torch.randn(4, 4, 3), None, 1, 12, group=2)
    x, before, work = torch.randn(50, 4), torch.randn(50, 4), Workspace()
    torch.testing.assert_close(run(conv, x, work, before), before + run(conv, x, work))


def test_float32_is_no_worse_than_a_direct_sum():
    weight, x = torch.randn(64, 64, 11), torch.randn(400, 64)
    exact = F.conv1d(x.double().t()[None], weight.double(), padding=5)[0].t()
    ours = (run(FourierConv1d(weight, None, 1, 32, 64), x, Workspace()) - exact).abs().max()
    direct = (F.conv1d(x.t()[None], weight, padding=5)[0].t() - exact).abs().max()
    assert ours < 2 * direct


def test_what_ran_before_leaves_no_trace():
    conv, work = FourierConv1d(torch.randn(4, 4, 7), torch.randn(4), 3, 16, group=2), Workspace()
    short, long = torch.randn(30, 4), torch.randn(500, 4)
    first = run(conv, short, work)
    run(conv, long, work)
    assert torch.equal(run(conv, short, work), first)


@pytest.mark.parametrize("count", [1, 40, 3333])
def test_groups_are_equal_shares_of_all_tiles(count):
    conv = FourierConv1d(torch.randn(4, 4, 7), None, 3, 16, group=20)
    groups = conv.groups(count)
    assert [tile for group in groups for tile in group] == list(range(3 * conv.tiles(count)))
    assert len(groups) % 2 == 0
    assert max(map(len, groups)) <= min(20, 1 + min(map(len, groups)))


def test_the_number_of_threads_changes_no_bit():
    conv, x, before = (
        FourierConv1d(torch.randn(16, 16, 7), None, 3, 16, group=20),
        torch.randn(3000, 16),
        torch.get_num_threads(),
    )
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(run(conv, x, Workspace()))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
