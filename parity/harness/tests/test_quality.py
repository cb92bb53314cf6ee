"""Quality metrics against published implementations, or against closed forms where there is none in our
dependencies.
"""

import math

import jiwer
import numpy as np
import pytest
import scipy.fft
import torch

from parity.harness import audio, image, text
from parity.harness.compare import compare

RATE = audio.RATE


def noise(*shape, seed=0, dtype=torch.float32):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


def tone(hertz, seconds=1.0):
    return torch.sin(2 * math.pi * hertz * torch.arange(int(RATE * seconds)) / RATE)


def test_mel_filters_are_those_that_openai_whisper_ships():
    whisper_audio = pytest.importorskip("whisper.audio")
    theirs = whisper_audio.mel_filters(torch.device("cpu"), 80)
    assert compare(theirs, audio.mel_filters().float(), "max_abs", bound=1e-8)


def test_log_mel_is_that_of_openai_whisper_before_its_scaling():
    whisper_audio = pytest.importorskip("whisper.audio")
    wave = noise(RATE) * 0.1
    theirs = whisper_audio.log_mel_spectrogram(wave)
    ours = audio.log_mel(wave)[:, :-1] / math.log(10)
    ours = (torch.maximum(ours, ours.max() - 8.0) + 4.0) / 4.0
    assert compare(theirs, ours.float(), "max_abs", bound=5e-6)


def test_cepstra_are_scipys_dct():
    wave = noise(RATE // 2)
    amplitude = (audio.log_mel(wave) / 2).numpy()
    theirs = scipy.fft.dct(amplitude, type=2, norm="ortho", axis=0)[1:14].T
    assert compare(torch.from_numpy(theirs.copy()), audio.cepstra(wave), "max_abs", bound=1e-10)


def test_mel_cepstral_distortion_has_its_closed_form_and_ignores_loudness():
    wave = noise(RATE // 2)
    assert compare(wave, wave.clone(), "mel_cepstral_distortion").observed == 0.0
    assert compare(wave, wave * 0.5, "mel_cepstral_distortion").observed < 1e-6
    other = noise(RATE // 2, seed=1)
    gap = (audio.cepstra(wave) - audio.cepstra(other)).numpy()
    by_hand = np.mean([10 / math.log(10) * math.sqrt(2 * float(row @ row)) for row in gap])
    assert compare(wave, other, "mel_cepstral_distortion", bound=99).observed == pytest.approx(by_hand)


def test_log_mel_correlation_is_numpys_and_tells_sounds_apart():
    a, b = noise(RATE // 2), tone(440, 0.5)
    theirs = np.corrcoef(audio.log_mel(a).reshape(-1), audio.log_mel(b).reshape(-1))[0, 1]
    assert compare(a, b, "log_mel_correlation", bound=-1).observed == pytest.approx(theirs)
    assert compare(a, a * 0.9, "log_mel_correlation", bound=0.9999)
    assert not compare(a, b, "log_mel_correlation", bound=0.9)


def test_join_excess_hears_a_jump_and_not_a_seamless_join():
    wave = tone(200)
    assert audio.join_excess(wave, [5000, 9000]) <= 1.0
    broken = wave.clone()
    broken[9000:] += 0.7
    assert audio.join_excess(broken, [5000, 9000]) == pytest.approx(0.7 / (2 * math.pi * 200 / RATE), rel=0.2)


def test_psnr_has_its_closed_form_and_the_worst_frame_shows():
    video = torch.zeros(4, 16, 16, 3, dtype=torch.uint8)
    off = video.clone()
    off[2] += 10
    one = 10 * math.log10(255**2 / 100)
    assert compare(video, off, "psnr_worst").observed == pytest.approx(one)
    assert compare(video, off, "psnr").observed == pytest.approx(one + 10 * math.log10(4))
    assert compare(video, video.clone(), "psnr", bound=math.inf)


def test_ssim_of_flat_pictures_is_the_luminance_term():
    a, b = torch.full((16, 16, 1), 0.25), torch.full((16, 16, 1), 0.75)
    c1 = 0.01**2
    want = (2 * 0.25 * 0.75 + c1) / (0.25**2 + 0.75**2 + c1)
    assert compare(a, b, "ssim").observed == pytest.approx(want)
    assert compare(a, a.clone(), "ssim", bound=1.0)


def test_ssim_of_one_window_is_the_formula_written_out():
    rng = np.random.default_rng(3)
    a, b = rng.random((11, 11)), rng.random((11, 11))
    ramp = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    w = np.outer(ramp, ramp) / ramp.sum() ** 2
    ma, mb = (w * a).sum(), (w * b).sum()
    va, vb = (w * (a - ma) ** 2).sum(), (w * (b - mb) ** 2).sum()
    cov = (w * (a - ma) * (b - mb)).sum()
    c1, c2 = 1e-4, 9e-4
    want = (2 * ma * mb + c1) * (2 * cov + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
    pictures = [torch.from_numpy(x)[..., None] for x in (a, b)]
    assert image.ssim(*pictures).value == pytest.approx(want)


SAID = ["the quick brown fox", "it's 9:45 in room 312", "one two three"]
HEARD = ["the quick brown box", "it is nine forty five in room 312", "one three four"]


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def test_error_rates_are_jiwers_and_the_edit_distance():
    rate = text.word_error_rate(SAID, HEARD)
    assert rate.rate == pytest.approx(jiwer.wer(SAID, HEARD))
    by_hand = sum(edit_distance(a.split(), b.split()) for a, b in zip(SAID, HEARD, strict=True))
    assert rate.substitutions + rate.deletions + rate.insertions == by_hand
    characters = text.character_error_rate(SAID, HEARD)
    assert characters.rate == pytest.approx(jiwer.cer(SAID, HEARD))


def test_the_published_normaliser_is_used():
    pytest.importorskip("whisper")
    clean = text.whisper_normaliser()
    assert text.word_error_rate(["It's twenty one, colour!"], ["it is 21 color"], clean).rate == 0.0
    assert text.word_error_rate(["It's twenty one, colour!"], ["it is 21 color"]).rate > 0.5


def test_silence_has_a_rate_too():
    assert text.word_error_rate([""], [""]).rate == 0.0
    assert text.word_error_rate([""], ["ghost words"]).rate == math.inf
    mixed = text.word_error_rate(["", "a b"], ["x", "a b"])
    assert (mixed.insertions, mixed.length, mixed.rate) == (1, 2, 0.5)


def test_the_interval_holds_the_rate_and_is_the_same_every_time():
    said, heard = ["a b c d"] * 30, ["a b c d"] * 20 + ["a b x d"] * 10
    rate = text.word_error_rate(said, heard)
    low, high = rate.interval()
    assert low < rate.rate < high
    assert (low, high) == rate.interval()
    assert text.word_error_rate(["a b"] * 5, ["a b"] * 5).interval() == (0.0, 0.0)
    assert rate.outliers(above=0.2) == list(range(20, 30))
