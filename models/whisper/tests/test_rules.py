"""Device tables against openai-whisper's logit filters, on random transcripts that obey the rules or break them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper.decoding import ApplyTimestampRules, SuppressBlank, SuppressTokens
from whisper.tokenizer import get_tokenizer

from models.whisper.request import TranscribeKnobs
from models.whisper.rules import RuleTables, only
from models.whisper.transcribe import rules_of

SLOTS = 3


@pytest.fixture(scope="module")
def theirs(tiny):
    return get_tokenizer(tiny.is_multilingual, num_languages=tiny.num_languages, language="en")


def expected(theirs, knobs, suppressed, logits, sampled):
    """The reference's filters in its order; the transcript starts after one token."""
    tokens = torch.tensor([[theirs.sot, *sampled]])
    logits = logits.clone()[None]
    if knobs.suppress_blank:
        SuppressBlank(theirs, 1).apply(logits, tokens)
    SuppressTokens(suppressed).apply(logits, tokens)
    if not knobs.without_timestamps:
        most = knobs.max_initial_timestamp
        ApplyTimestampRules(theirs, 1, None if most is None else round(most / 0.02)).apply(logits, tokens)
    return logits[0]


KNOBS = [
    TranscribeKnobs(),
    TranscribeKnobs(max_initial_timestamp=None),
    TranscribeKnobs(without_timestamps=True),
    TranscribeKnobs(without_timestamps=True, suppress_blank=False, suppress_tokens=(5, 6)),
]


@settings(deadline=None, max_examples=60)
@given(data=st.data(), which=st.integers(0, len(KNOBS) - 1), seed=st.integers(0, 2**32), lift=st.floats(-8, 8))
def test_filters_are_the_references(port, theirs, data, which, seed, lift):
    knobs, tokenizer, vocab = KNOBS[which], port.tokenizer, port.config.n_vocab
    stamps = st.integers(tokenizer.timestamps, vocab - 1)
    sampled = data.draw(st.lists(st.one_of(stamps, st.integers(0, tokenizer.eot - 1)), max_size=6))
    tables = RuleTables(tokenizer, SLOTS, vocab)
    slot = data.draw(st.integers(1, SLOTS))
    tables.set(slot, rules_of(tokenizer, port.config, knobs))
    for token in sampled:
        tables.append(torch.tensor([slot]), torch.tensor([token]))
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(seed))
    logits[tokenizer.timestamps :] += lift
    listed = knobs.suppress_tokens
    suppressed = [*theirs.non_speech_tokens] if -1 in listed else list(listed)
    suppressed += [theirs.transcribe, theirs.translate, theirs.sot, theirs.sot_prev, theirs.sot_lm, theirs.no_speech]
    ours = tables.filter(logits[None], torch.tensor([slot]))[0]
    assert torch.equal(ours, expected(theirs, knobs, suppressed, logits, sampled))


def test_a_slot_starts_over(port):
    tables = RuleTables(port.tokenizer, SLOTS, port.config.n_vocab)
    rules = rules_of(port.tokenizer, port.config, TranscribeKnobs())
    logits = torch.zeros(1, port.config.n_vocab)
    slots = torch.tensor([2])
    tables.set(2, rules)
    fresh = tables.filter(logits, slots)
    tables.append(slots, torch.tensor([port.tokenizer.timestamps]))
    assert not torch.equal(tables.filter(logits, slots), fresh)
    tables.set(2, rules)
    assert torch.equal(tables.filter(logits, slots), fresh)


def test_rows_do_not_touch_each_other(port):
    tables = RuleTables(port.tokenizer, SLOTS, port.config.n_vocab)
    for slot in (1, 2):
        tables.set(slot, rules_of(port.tokenizer, port.config, TranscribeKnobs()))
    tables.set(3, only([7, 9], port.config.n_vocab))
    tables.append(torch.tensor([1]), torch.tensor([port.tokenizer.timestamps + 4]))
    logits = torch.randn(3, port.config.n_vocab, generator=torch.Generator().manual_seed(1))
    together = tables.filter(logits, torch.tensor([1, 2, 3]))
    for i in range(3):
        assert torch.equal(tables.filter(logits[i : i + 1], torch.tensor([i + 1]))[0], together[i])
    assert np.flatnonzero(together[2].isfinite().numpy()).tolist() == [7, 9]
