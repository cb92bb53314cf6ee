"""Noise: a field does not depend on the window that asks for it, and draws come in the package's order."""

import pytest
import torch

from models.chatterbox.s3gen_noise import Draws, Kind, field, field_offsets, flow_field, source_field


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (5, 70), (31, 33), (64, 96), (7, 7)])
def test_a_window_of_a_field_is_a_part_of_it(start, stop):
    whole = field(3, Kind.SPEECH, 0, 200, (4,))
    torch.testing.assert_close(field(3, Kind.SPEECH, start, stop, (4,)), whole[start:stop], rtol=0, atol=0)


def test_fields_of_kinds_and_seeds_have_nothing_in_common():
    found = [field(seed, kind, 0, 64, (8,)) for seed in (1, 2) for kind in (Kind.PROMPT, Kind.SPEECH)]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert abs(float((one * other).mean())) < 0.2
            assert not torch.equal(one, other)


def test_a_flow_starts_with_the_prompts_noise_whatever_the_window():
    first, later = flow_field(1, 6, 0, 10), flow_field(1, 6, 40, 50)
    assert first.shape == later.shape == (80, 16)
    torch.testing.assert_close(first[:, :6], later[:, :6], rtol=0, atol=0)
    assert not torch.equal(first[:, 6:], later[:, 6:])


def test_a_sources_samples_follow_one_another():
    whole = source_field(1, 0, 50, 480)
    assert whole.shape == (9, 50 * 480)
    torch.testing.assert_close(source_field(1, 40, 50, 480), whole[:, 40 * 480 :], rtol=0, atol=0)


def test_draws_are_torchs_in_order():
    torch.manual_seed(11)
    said, noise = torch.randn(1, 80, 6), torch.randn(1, 80, 10)
    phase, source = torch.rand(1, 9, 1), torch.randn(1, 9, 100)
    draws = Draws(11)
    found = draws.flow(4, 6, meanflow=True)
    assert torch.equal(found[:, :4], noise[0, :, :4])
    assert torch.equal(found[:, 4:], said[0])
    offsets = draws.offsets()
    torch.testing.assert_close(offsets[1:], (phase[0, 1:] * 2 - 1) * torch.pi, rtol=1e-5, atol=1e-5)
    assert offsets[0] == 0
    assert torch.equal(draws.source(100), source[0])
    assert field_offsets(11)[0] == 0
