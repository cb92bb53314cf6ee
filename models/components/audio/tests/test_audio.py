"""Spectrograms against openai-whisper's own, resampling against outputs recorded from FFmpeg's swresample."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from whisper.audio import log_mel_spectrogram, mel_filters

from models.components.audio.mel import hz_to_mel, log_mel, mel_to_hz, slaney_filters
from models.components.audio.resample import mono, phases, resample, resample_part

RECORDED = json.loads((Path(__file__).parent / "swresample.json").read_text())["to_16000"]


def chirp(rate: int) -> np.ndarray:
    t = np.arange(rate // 10) / rate
    tone = 0.3 * np.sin(2 * np.pi * (200 * t + 15000 * t * t))
    return (tone + 0.1 * np.sign(np.sin(2 * np.pi * 37 * t))).astype(np.float32)


@pytest.mark.parametrize("n_mels", [80, 128])
def test_filters_are_those_that_whisper_ships(n_mels):
    assert torch.equal(slaney_filters(n_mels, 400, 16_000), mel_filters("cpu", n_mels))


def test_the_scale_inverts():
    hz = np.linspace(0, 8000, 999)
    assert np.allclose(mel_to_hz(hz_to_mel(hz)), hz)
    assert hz_to_mel(np.array(1000.0)) == pytest.approx(15)


@pytest.mark.parametrize("n_mels", [80, 128])
@pytest.mark.parametrize("seconds", [0.5, 3.21])
def test_log_mel_is_whispers(n_mels, seconds):
    generator = torch.Generator().manual_seed(1)
    samples = torch.randn(int(seconds * 16_000), generator=generator) * torch.linspace(0, 0.5, int(seconds * 16_000))
    assert torch.equal(log_mel(samples, n_mels), log_mel_spectrogram(samples, n_mels))


@pytest.mark.parametrize("rate", [int(rate) for rate in RECORDED])
def test_resampling_is_swresamples(rate):
    expected, out = RECORDED[str(rate)], resample(chirp(rate), rate, 16_000)
    assert len(out) == expected["length"]
    for name, part in {"first": out[:16], "middle": out[800:816], "last": out[-16:]}.items():
        assert np.abs(part - expected[name]).max() < 2e-7, name


@pytest.mark.parametrize(("rate", "target"), [(44_100, 16_000), (8_000, 16_000), (16_000, 24_000), (22_050, 24_000)])
def test_a_tone_stays_a_tone(rate, target):
    n = 2 * rate
    out = resample(np.sin(2 * np.pi * 440 * np.arange(n) / rate).astype(np.float32), rate, target)
    middle = slice(target // 2, 3 * target // 2)
    expected = np.sin(2 * np.pi * 440 * np.arange(len(out)) / target)
    assert len(out) == 2 * target
    assert np.abs(out - expected)[middle].max() < 1e-4


def test_short_and_equal():
    assert resample(np.zeros(0, np.float32), 44_100, 16_000).shape == (0,)
    assert np.isfinite(resample(np.ones(1, np.float32), 44_100, 16_000)).all()
    same = chirp(16_000)
    assert np.array_equal(resample(same, 16_000, 16_000), same)
    assert phases(1, 3).sum() == pytest.approx(1)


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 192_000])
def test_a_part_is_resampled_as_in_the_whole(rate):
    samples = np.random.default_rng(rate).standard_normal(3 * rate).astype(np.float32)
    whole, asked = resample(samples, rate, 16_000), []

    def read(start, stop):
        asked.append(stop - start)
        return samples[start:stop]

    for start, stop in ((0, 100), (17, 1000), (16_001, 16_002), (16_000, 32_000), (47_000, 48_000), (0, 48_000)):
        assert np.array_equal(resample_part(read, len(samples), rate, 16_000, start, stop), whole[start:stop])
    assert max(asked[:3]) < rate // 4


def test_mono_is_the_mean():
    stereo = np.array([[0.5, 1.0], [0.0, -1.0]], np.float32)
    assert np.array_equal(mono(stereo), np.array([0.25, 0.0], np.float32))
    assert np.array_equal(mono(stereo[:1]), stereo[0])
