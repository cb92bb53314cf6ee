"""A row in a padded batch is what it is alone, in every layer and in both halves; and layers are torch's own."""

import pytest
import torch
import torch.nn.functional as F

from models.kokoro.config import Config
from models.kokoro.layers import AdaIN1d, AdainResBlk1d, BiLSTM, Span
from models.kokoro.modules import Kokoro, draw_noise, frame_counts
from models.kokoro.spectrum import Spectrum
from models.kokoro.tests import tiny
from models.kokoro.vocoder import SnakeBlock

LENGTHS = torch.tensor([5, 9, 7])
SIZE = 12


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        yield


def rows(channels, *, scale=1):
    """Random rows [B, C, T] with rubbish past each row's end."""
    return torch.randn(len(LENGTHS), channels, SIZE * scale) + 0.5


def decibels(ours, theirs):
    """How far the difference lies under the signal."""
    return float(10 * torch.log10(theirs.square().sum() / (ours - theirs).square().sum()))


def alone(i, x, scale=1):
    return x[i : i + 1, :, : int(LENGTHS[i]) * scale]


def test_lstm_starts_backwards_at_each_rows_end():
    lstm, x = BiLSTM(4, 3), rows(4)
    torchs = torch.nn.LSTM(4, 3, batch_first=True, bidirectional=True)
    torchs.load_state_dict(lstm.state_dict())
    ours = lstm(x.transpose(1, 2), Span.of(LENGTHS, SIZE))
    for i, n in enumerate(LENGTHS):
        theirs, _ = torchs(x[i : i + 1, :, :n].transpose(1, 2))
        torch.testing.assert_close(ours[i : i + 1, :n], theirs, atol=1e-6, rtol=0)
        assert not ours[i, n:].any()


def test_adain_counts_real_positions_only():
    layer, x, style = AdaIN1d(6, 4), rows(4), torch.randn(3, 6)
    ours = layer(x, style, Span.of(LENGTHS, SIZE))
    for i, n in enumerate(LENGTHS):
        scale, shift = layer.fc(style[i : i + 1])[:, :, None].chunk(2, 1)
        theirs = (1 + scale) * F.instance_norm(alone(i, x)) + shift
        torch.testing.assert_close(ours[i : i + 1, :, :n], theirs, atol=1e-5, rtol=0)
        assert not ours[i, :, n:].any()


@pytest.mark.parametrize("upsample", [False, True])
def test_residual_block_ignores_padding(upsample):
    block, x, style = AdainResBlk1d(4, 6, 6, upsample=upsample), rows(4), torch.randn(3, 6)
    twice = 2 if upsample else 1
    out = block(x, style, Span.of(LENGTHS, SIZE), Span.of(twice * LENGTHS, twice * SIZE))
    for i, n in enumerate(LENGTHS):
        one = LENGTHS[i : i + 1]
        theirs = block(alone(i, x), style[i : i + 1], Span.of(one, int(n)), Span.of(twice * one, twice * int(n)))
        torch.testing.assert_close(out[i : i + 1, :, : twice * n], theirs, atol=1e-5, rtol=0)


def test_snake_block_ignores_padding():
    block, x, style = SnakeBlock(4, 7, (1, 3, 5), 6), rows(4), torch.randn(3, 6)
    out = block(x, style, Span.of(LENGTHS, SIZE))
    for i, n in enumerate(LENGTHS):
        theirs = block(alone(i, x), style[i : i + 1], Span.of(LENGTHS[i : i + 1], int(n)))
        torch.testing.assert_close(out[i : i + 1, :, :n], theirs, atol=1e-5, rtol=0)


def test_spectrum_is_torchs_own_on_each_row():
    spectrum, hop = Spectrum(20, 5), 5
    x = rows(1, scale=20)[:, 0]
    samples = LENGTHS * 20
    both = spectrum.forward_transform(x, samples)
    span = Span.of(samples // hop + 1, both.shape[2])
    magnitude, phase = both.chunk(2, 1)
    audio = spectrum.inverse_transform(magnitude, phase, span)
    for i, n in enumerate(samples.tolist()):
        theirs = torch.stft(x[i, :n], 20, hop, 20, window=torch.hann_window(20), return_complex=True)
        steps = theirs.shape[1]
        torch.testing.assert_close(magnitude[i, :, :steps], theirs.abs(), atol=1e-5, rtol=0)
        assert not both[i, :, steps:].any()
        back = torch.istft(theirs, 20, hop, 20, window=torch.hann_window(20))
        torch.testing.assert_close(audio[i, :n], back, atol=1e-5, rtol=0)
        assert not audio[i, n:].any()


def test_text_half_ignores_padding_and_neighbours():
    model = tiny.network()
    tokens, style, speed = torch.randint(1, 30, (3, SIZE)), torch.randn(3, 16), torch.tensor([1.0, 0.5, 2.0])
    together = model.text_half(tokens, LENGTHS, style, speed)
    for i, n in enumerate(LENGTHS):
        one = slice(i, i + 1)
        solo = model.text_half(tokens[one, :n], LENGTHS[one], style[one], speed[one])
        for ours, theirs in zip(together, solo, strict=True):
            torch.testing.assert_close(ours[one, :n], theirs, atol=1e-5, rtol=0)


def test_frame_half_ignores_padding_and_neighbours():
    torch.manual_seed(0)  # how far rounding noise goes depends on the draw
    model = tiny.network()
    each = model.config.samples_per_frame
    prosody, text, style = torch.randn(3, SIZE, 24), torch.randn(3, SIZE, 16), torch.randn(3, 16)
    noise = torch.randn(3, 9, SIZE * each) * (torch.arange(SIZE * each) < LENGTHS[:, None, None] * each)
    audio = model.frame_half(prosody, text, LENGTHS, style, noise)
    assert audio.shape == (3, SIZE * each)
    for i, n in enumerate(LENGTHS):
        one = slice(i, i + 1)
        solo = model.frame_half(prosody[one, :n], text[one, :n], LENGTHS[one], style[one], noise[one, :, : n * each])
        # NOTE: the phase of a source bin near zero is rounding noise, so waveforms agree to decibels only.
        assert decibels(audio[one, : n * each], solo) > 40
        assert not audio[i, n * each :].any()


def test_frame_half_is_exact_once_the_source_is_given():
    model, style = tiny.network(), torch.randn(3, 8)
    generator = model.decoder.generator
    x, lengths = rows(16, scale=2), 2 * LENGTHS
    x = x * Span.of(lengths, 2 * SIZE).mask
    steps = 60 * lengths + 1
    source = torch.randn(3, 22, 120 * SIZE + 1) * Span.of(steps, 120 * SIZE + 1).mask
    audio = generator(x, style, source, lengths)
    for i, n in enumerate(lengths.tolist()):
        one = slice(i, i + 1)
        solo = generator(x[one, :, :n], style[one], source[one, :, : 60 * n + 1], lengths[one])
        assert decibels(audio[one, : 300 * n], solo) > 100


def test_a_sink_row_gives_numbers():
    model = tiny.network()
    tokens, style = torch.zeros(2, 6, dtype=torch.long), torch.zeros(2, 16)
    lengths = torch.tensor([6, 0])
    encoded = model.text_half(tokens, lengths, style, torch.ones(2))
    noise = torch.zeros(2, 9, 6 * model.config.samples_per_frame)
    audio = model.frame_half(encoded.prosody, encoded.text, lengths, style, noise)
    assert all(torch.isfinite(part).all() for part in (*encoded, audio))


def test_durations_round_half_to_even_and_last_a_frame():
    assert frame_counts(torch.tensor([0.2, 1.5, 2.5, 3.4])).tolist() == [1, 2, 2, 3]


def test_noise_is_the_references_draw():
    """As in kokoro's SineGen: nine phases, then noise like a transposed tensor."""
    torch.manual_seed(5)
    torch.rand(1, 9)
    theirs = torch.randn_like(torch.zeros(1, 9, 1200).transpose(1, 2))
    ours = draw_noise(torch.Generator().manual_seed(5), 1200)
    assert torch.equal(ours, theirs[0].T)


def test_the_published_size():
    with torch.device("meta"):
        model = Kokoro(Config())
    assert sum(p.numel() for p in model.parameters()) == 81_140_664
