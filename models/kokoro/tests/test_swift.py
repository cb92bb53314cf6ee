"""The generator for CPUs gives what the plain one gives, whatever the length, row and what ran before."""

import numpy as np
import pytest
import torch

from models.kokoro.modules import draw_noise
from models.kokoro.swift import SwiftFrameHalf
from models.kokoro.tests import tiny
from models.kokoro.tests.test_modules import decibels

NET = tiny.network()
SWIFT = SwiftFrameHalf(NET)


def inputs(*lengths, size=None):
    """Rows of random frames, zero past each end, with everything that the frame half takes."""
    generator = torch.Generator().manual_seed(sum(lengths))
    size, c = size or max(lengths), NET.config
    prosody = torch.randn(len(lengths), size, c.hidden_dim + c.style_dim, generator=generator)
    text = torch.randn(len(lengths), size, c.hidden_dim, generator=generator)
    noise = torch.zeros(len(lengths), 9, size * c.samples_per_frame)
    for i, n in enumerate(lengths):
        prosody[i, n:], text[i, n:] = 0, 0
        drawn = draw_noise(torch.Generator().manual_seed(i), n * c.samples_per_frame)
        noise[i, :, : n * c.samples_per_frame] = drawn
    style = torch.randn(len(lengths), 2 * c.style_dim, generator=generator)
    return prosody, text, torch.tensor(lengths), style, noise


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("lengths", [(1,), (9,), (40,), (5, 17, 11)])
def test_it_is_the_frame_half(lengths):
    given = inputs(*lengths)
    ours, theirs = SWIFT(*given), NET.frame_half(*given)
    assert ours.shape == theirs.shape
    for i, n in enumerate(lengths):
        samples = n * NET.config.samples_per_frame
        assert decibels(ours[i, :samples], theirs[i, :samples]) > 60
        assert not ours[i, samples:].any()


def test_padding_and_neighbours_change_no_bit_of_the_generator():
    given = inputs(8, 21)
    both = SWIFT.generator
    x, f0 = NET.trunk(*given[:3], given[3])
    source = NET.decoder.generator.source(f0[:1, :16], given[4][:1, :, : 8 * 600], torch.tensor([16]))[0].t()
    style = given[3][0, : NET.config.style_dim]
    first = both(x[0, :, :16].t().contiguous(), style, source)
    SWIFT(*inputs(60))
    np.testing.assert_array_equal(both(x[0, :, :16].t().contiguous(), style, source), first)


def test_a_row_of_padding_is_silent():
    prosody, text, _, style, noise = inputs(4)
    assert not SWIFT(prosody, text, torch.tensor([0]), style, noise).any()


def test_another_style_is_another_sound():
    prosody, text, lengths, style, noise = inputs(12)
    assert decibels(SWIFT(prosody, text, lengths, -style, noise), SWIFT(prosody, text, lengths, style, noise)) < 20
