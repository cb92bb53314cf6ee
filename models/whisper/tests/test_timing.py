"""Path, filter and punctuation against openai-whisper's own functions."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper import timing as theirs

from models.whisper import timing


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 9), (7, 1), (5, 40), (30, 200)])
@pytest.mark.parametrize("levels", [3, 10_000])
def test_the_path_is_the_references(n, m, levels):
    """With three levels ties are everywhere, so their order is tested too."""
    rng = np.random.default_rng(n * m)
    cost = rng.integers(0, levels, (n, m)).astype(np.float64) / levels
    rows, columns = timing.warp(cost)
    expected = theirs.dtw_cpu(cost)
    assert np.array_equal(rows, expected[0])
    assert np.array_equal(columns, expected[1])


@pytest.mark.parametrize("frames", [2, 3, 4, 7, 100])
def test_the_median_filter_is_the_references(frames):
    x = torch.randn(3, 5, frames, generator=torch.Generator().manual_seed(frames))
    assert torch.equal(timing.median_filter(x, 7), theirs.median_filter(x, 7))


words = st.sampled_from([" a", " word", ".", ",", " (", ' "', ")", "!", " -", "。", " x", "?"])


@settings(max_examples=200)
@given(st.lists(words, max_size=8))
def test_punctuation_joins_as_in_the_reference(texts):
    ours = [timing.Timing(text, [i], 0.1 * i, 0.1 * i + 0.1, 0.5) for i, text in enumerate(texts)]
    reference = [theirs.WordTiming(t.word, list(t.tokens), t.start, t.end, t.probability) for t in ours]
    timing.merge_punctuation(ours, "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、")
    theirs.merge_punctuations(reference, "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、")
    assert [(t.word, t.tokens) for t in ours] == [(t.word, t.tokens) for t in reference]


def test_long_words_at_sentence_ends_are_cut():
    made = [timing.Timing(" so", [1], 0.0, 0.2, 1), timing.Timing(".", [2], 0.2, 3.0, 1)]
    made.append(timing.Timing(" then", [3], 3.0, 6.0, 1))
    before = copy.deepcopy(made)
    timing.shorten_at_sentence_ends(made, 0.5)
    assert made[0] == before[0]
    assert (made[1].start, made[1].end) == (0.2, 0.7)
    assert (made[2].start, made[2].end) == (5.5, 6.0)


def test_the_usual_length_ignores_empty_words_and_has_a_cap():
    def of(*lengths):
        return timing.median_duration([timing.Timing("a", [1], 0, length, 1) for length in lengths])

    assert of() == 0
    assert of(0.0, 0.2, 0.4) == pytest.approx(0.3)
    assert of(2.0, 3.0) == 0.7
