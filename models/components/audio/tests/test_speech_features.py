"""Resamplers, filter banks and the vocoder's mel: lengths, tones, and what their formulas promise."""

import numpy as np
import pytest
import torch

from models.components.audio import kaldi, sinc, soxr_hq
from models.components.audio.mel import slaney_filters, vocoder_mel
from models.components.audio.snake import Snake


def tone(hz, rate, seconds=1.0):
    return torch.sin(2 * torch.pi * hz * torch.arange(int(rate * seconds)) / rate)


@pytest.mark.parametrize(("rate", "target"), [(24_000, 16_000), (24_000, 32_000), (44_100, 24_000), (8000, 24_000)])
@pytest.mark.parametrize("convert", [sinc.resample, lambda x, *r: torch.from_numpy(soxr_hq.resample(x.numpy(), *r))])
def test_a_tone_is_the_same_tone_at_another_rate(convert, rate, target):
    found, expected = convert(tone(440, rate), rate, target), tone(440, target)
    assert len(found) - target in (0, 1)  # the ratio of some rates is no float
    found = found[:target]
    middle = slice(target // 10, -target // 10)
    assert (found[middle] - expected[middle]).abs().max() < 2e-3


@pytest.mark.parametrize("convert", [sinc.resample, lambda x, *r: torch.from_numpy(soxr_hq.resample(x.numpy(), *r))])
def test_what_the_lower_rate_cannot_hold_is_taken_out(convert):
    assert convert(tone(11_000, 24_000), 24_000, 16_000)[1000:-1000].abs().max() < 0.03


def test_rows_are_resampled_each_by_itself():
    rows = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    found = sinc.resample(rows, 24_000, 32_000)
    assert found.shape == (3, 1334)
    torch.testing.assert_close(found[1], sinc.resample(rows[1], 24_000, 32_000))


def test_lengths_are_rounded_as_librosa_rounds_them():
    assert len(soxr_hq.resample(np.zeros(119_070, np.float32), 44_100, 24_000)) == 64_801
    assert len(soxr_hq.resample(np.zeros(7, np.float32), 24_000, 24_000)) == 7


def test_kaldi_banks_have_whole_frames_and_hear_a_tone_where_it_is():
    found = kaldi.fbank(tone(1000, 16_000), 80)
    assert found.shape == (98, 80)
    peak = int(kaldi.banks(80)[:, round(1000 / 16_000 * 512)].argmax())
    assert (found.argmax(1) == peak).all()
    assert torch.isfinite(kaldi.fbank(torch.zeros(1000), 80)).all()


def test_the_vocoders_mel_has_a_frame_a_hop_and_stops_at_8_khz():
    found = vocoder_mel(tone(1000, 24_000))
    assert found.shape == (80, 50)
    peak = int(slaney_filters(80, 1920, 24_000, 8000.0)[:, 80].argmax())
    assert (found[:, 5:-5].argmax(0) == peak).all()
    assert (vocoder_mel(tone(10_000, 24_000))[:, 5:-5].amax(0) < found.amax() - 5).all()


def test_snake_is_its_formula():
    snake, x = Snake(3), torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        snake.alpha.copy_(torch.tensor([0.5, 1.0, 3.0]))
        alpha = snake.alpha[:, None]
        torch.testing.assert_close(snake(x), x + torch.sin(alpha * x) ** 2 / alpha)
