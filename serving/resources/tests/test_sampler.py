"""Sampler: exact probabilities and supports, and draws that depend on seed and position only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from serving.errors import SetupError
from serving.resources import Sampler, SamplingParams, draws, sampling
from serving.resources.sampler import AHEAD
from serving.resources.tests.batches import batch

VOCAB = 13
LOGITS = torch.randn(VOCAB, generator=torch.Generator().manual_seed(0)) * 1.5


def make(slots=64, vocab=VOCAB, **changes):
    return Sampler(slots=slots, vocab=vocab, **changes)


def step(sampler, slots, units=None, size=None, **uses):
    b = batch(slots, units or [1] * len(slots), size=size)
    b.use["sampler"] = sampler.plan(b, write=True)
    return b, b.use["sampler"]


def many(params, count=100_000, **changes):
    """Draws of one distribution over positions, slots and seeds."""
    slots = 1000
    sampler = make(slots=slots, **changes)
    for slot in range(1, slots + 1):
        sampler.set(slot, params, seed=slot)
    logits = LOGITS.expand(slots, VOCAB)
    rows = list(range(1, slots + 1))
    return np.concatenate([step(sampler, rows)[1](logits).numpy() for _ in range(count // slots)])


def probabilities(logits):
    return logits.double().softmax(-1).numpy()


def chi_square(drawn, p):
    counts = np.bincount(drawn, minlength=len(p))
    assert not counts[p == 0].any(), "drawn outside the support"
    return stats.chisquare(counts[p > 0], p[p > 0] / p.sum() * len(drawn)).pvalue


def test_temperature_gives_the_exact_distribution():
    drawn = many(SamplingParams(temperature=0.8))
    assert chi_square(drawn, probabilities(LOGITS / 0.8)) > 1e-3
    assert chi_square(drawn, probabilities(LOGITS / 0.9)) < 1e-6, "the test would see a wrong temperature"


@pytest.mark.parametrize("k", [1, 3, 13, 50])
def test_top_k_has_the_exact_support_and_distribution(k):
    order = LOGITS.argsort(descending=True)
    kept = torch.full((VOCAB,), -np.inf)
    kept[order[:k]] = LOGITS[order[:k]]
    drawn = many(SamplingParams(temperature=1, top_k=k), 50_000)
    assert set(drawn) == set(order[:k].tolist())
    if k > 1:
        assert chi_square(drawn, probabilities(kept)) > 1e-3


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.999])
def test_top_p_has_the_exact_support_and_distribution(p):
    order = LOGITS.argsort(descending=True)
    mass = np.cumsum(probabilities(LOGITS)[order])
    count = int(np.searchsorted(mass, p) + 1)
    kept = torch.full((VOCAB,), -np.inf)
    kept[order[:count]] = LOGITS[order[:count]]
    processed = sampling.top_p(LOGITS[None], torch.tensor([p]))
    assert torch.equal(processed[0], kept)
    drawn = many(SamplingParams(temperature=1, top_p=p), 50_000)
    if count > 1:
        assert chi_square(drawn, probabilities(kept)) > 1e-3


def test_top_p_beyond_the_sorted_prefix():
    flat = torch.linspace(0, 1e-3, 3000)
    kept = sampling.top_p(flat[None], torch.tensor([0.75]))
    assert 2249 <= int(kept.isfinite().sum()) <= 2251
    narrow = sampling.top_p(torch.stack([flat, flat * 1e5]), torch.tensor([0.75, 0.75]))
    assert torch.equal(narrow[0], kept[0]), "a row's support does not depend on the rows beside it"


def test_min_p_has_the_exact_support():
    p = probabilities(LOGITS)
    kept = sampling.min_p(LOGITS[None], torch.tensor([0.2]))[0]
    assert set(np.flatnonzero(kept.isfinite())) == set(np.flatnonzero(p >= 0.2 * p.max()))
    assert torch.equal(sampling.min_p(LOGITS[None], torch.zeros(1))[0], LOGITS)


def test_temperature_zero_is_the_most_likely_token():
    sampler = make()
    sampler.set(1, SamplingParams())
    sampler.set(2, SamplingParams(temperature=5.0), seed=1)
    assert step(sampler, [1])[1](LOGITS[None]).tolist() == [int(LOGITS.argmax())]
    got = [step(sampler, [2, 1], size=3)[1](LOGITS.expand(3, -1)).tolist() for _ in range(20)]
    assert {row[1] for row in got} == {int(LOGITS.argmax())}
    assert len({row[0] for row in got}) > 3


def test_draws_do_not_depend_on_batch_place_chunks_or_retries():
    params = [
        SamplingParams(temperature=1),
        SamplingParams(temperature=0.7, top_k=5, repetition_penalty=1.3),
        SamplingParams(temperature=1.2, top_p=0.8, presence_penalty=0.5, frequency_penalty=0.2),
        SamplingParams(temperature=1.0, min_p=0.05, logit_bias={3: 2.0, 5: -100.0}),
        SamplingParams(),
    ]
    logits = torch.randn(40, VOCAB, generator=torch.Generator().manual_seed(3))

    def alone(i, chunks):
        sampler = make()
        sampler.set(1, params[i], seed=i, prompt=range(4))
        for chunk in chunks:
            _, use = step(sampler, [1], [chunk])
            first = use(logits[:1])
        return [first.item(), *(step(sampler, [1])[1](logits[t : t + 1]).item() for t in range(1, 40))]

    want = [alone(i, [4]) for i in range(5)]
    assert [alone(i, [1, 2, 1]) for i in range(5)] == want
    sampler = make()
    slots = [9, 4, 7, 1, 30]
    for i, slot in enumerate(slots):
        sampler.set(slot, params[i], seed=i, prompt=range(4))
    got = []
    for t in range(40):
        units = [4 if t == 0 else 1] * 5
        b, use = step(sampler, slots, units, size=7)
        use(logits[t].expand(7, -1))
        sampler.commit(b, np.zeros(5, np.int64))
        order = np.random.default_rng(t).permutation(5)
        b, use = step(sampler, [slots[i] for i in order], units, size=5 + t % 3)
        tokens = use(logits[t].expand(5 + t % 3, -1))[:5]
        sampler.commit(b, b.units)
        got.append(tokens[np.argsort(order)].tolist())
    assert [list(row) for row in zip(*got, strict=True)] == want


def test_penalties_follow_their_formulas():
    sampler = make()
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    sampler.set(1, params, prompt=[0, 1], output=[2, 2, 3])
    logits = torch.tensor([1.0, -1.0, 2.0, -2.0] + [0.0] * 9)
    got = step(sampler, [1], [5])[1].process(logits[None])[0]
    want = torch.tensor([0.5, -2.0, 1.0 - 0.5 - 0.5, -4.0 - 0.5 - 0.25] + [0.0] * 9)
    torch.testing.assert_close(got, want)


def test_drawn_tokens_are_counted_once_the_prompt_is_over():
    sampler = make()
    sampler.set(1, SamplingParams(frequency_penalty=10.0), prompt=[0, 1, 2])
    assert step(sampler, [1], [2])[1](LOGITS[None]).item() == LOGITS.argmax()
    seen = [step(sampler, [1])[1](LOGITS[None]).item() for _ in range(VOCAB)]
    assert seen == LOGITS.argsort(descending=True).tolist()


def test_order_is_the_models():
    params = SamplingParams(temperature=0.25, min_p=0.1)
    logits = torch.tensor([0.0, -1.5, -3.0] + [-9.0] * 10)

    def support(order):
        sampler = make(order=order)
        sampler.set(1, params)
        return int(step(sampler, [1])[1].process(logits[None]).isfinite().sum())

    assert (support(("temperature", "min_p")), support(("min_p", "temperature"))) == (1, 2)
    with pytest.raises(SetupError, match='Did you mean "top_k"'):
        make(order=("topk",))


def test_allowed_range():
    drawn = many(SamplingParams(temperature=1), 10_000, allowed=slice(4, 9))
    assert set(drawn) == {4, 5, 6, 7, 8}
    sampler = make(allowed=slice(4, 9))
    sampler.set(1, SamplingParams(logit_bias={6: 50.0, 2: 99.0}))
    assert step(sampler, [1])[1](LOGITS[None]).tolist() == [6]
    processed = step(sampler, [1])[1].process(LOGITS[None])[0]
    assert np.flatnonzero(processed.isfinite()).tolist() == [4, 5, 6, 7, 8]


def test_sub_samplers_draw_apart_and_by_their_own_parameters():
    sampler = make(subs=("main", "code"))
    first = {"code": SamplingParams(temperature=1, top_k=1)}
    sampler.set(1, SamplingParams(temperature=1), seed=5, subs=first)
    sampler.set(2, SamplingParams(temperature=1), seed=5)
    main, code = [], []
    for _ in range(50):
        use = step(sampler, [1, 2])[1]
        main.append(use(LOGITS.expand(2, -1)).tolist())
        code.append(use(LOGITS.expand(2, -1), "code").tolist())
    assert all(a == b for a, b in main), "same seed, same draws"
    assert {a for a, _ in code} == {int(LOGITS.argmax())}
    assert [b for _, b in code] != [b for _, b in main]


def test_a_bias_leaves_with_its_owner():
    sampler = make()
    for slot in (1, 2):
        sampler.set(slot, SamplingParams(logit_bias={6: 50.0}))
    sampler.bind(1, "next")
    best = int(LOGITS.argmax())
    assert step(sampler, [1, 2], size=3)[1](LOGITS.expand(3, -1)).tolist() == [best, 6, best]
    assert step(sampler, [2, 1])[1](LOGITS.expand(2, -1)).tolist() == [6, best]


def test_the_first_sampler_has_the_bias_that_is_its_own():
    sampler = make(subs=("main", "code"))
    sampler.set(1, SamplingParams(logit_bias={2: 50.0}), subs={"main": SamplingParams(logit_bias={6: 50.0})})
    use = step(sampler, [1])[1]
    assert use(LOGITS[None]).tolist() == [6]
    assert use(LOGITS[None], "code").tolist() == [int(LOGITS.argmax())]


def test_a_step_that_only_reads_counts_nothing():
    sampler = make()
    sampler.set(1, SamplingParams(temperature=1.0), seed=3)
    b = batch([1], [1])
    first = sampler.plan(b, write=False)(LOGITS.expand(1, -1))
    assert sampler.position[1] == 0
    assert torch.equal(step(sampler, [1])[1](LOGITS.expand(1, -1)), first)


def test_logprobs_raw_and_processed():
    sampler = make()
    sampler.set(1, SamplingParams(temperature=0.5, top_k=2))
    use = step(sampler, [1])[1]
    best = LOGITS.argmax()[None]
    torch.testing.assert_close(use.logprobs(LOGITS[None], best), LOGITS.log_softmax(-1)[best])
    two = LOGITS.topk(2).values / 0.5
    torch.testing.assert_close(use.logprobs(use.process(LOGITS[None]), best), two.log_softmax(-1)[:1])


def test_uniform_draws_are_uniform_and_independent():
    u = draws.uniform(draws.keys(1, 4)[:, None], np.arange(25_000)[None])
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(u)[np.triu_indices(4, 1)]).max() < 0.03
    assert abs(np.corrcoef(u[0, :-1], u[0, 1:])[0, 1]) < 0.03
    seeds = np.array([draws.uniform(draws.keys(s, 1), np.zeros(1, np.int64))[0] for s in range(5000)])
    assert stats.kstest(seeds, "uniform").pvalue > 1e-3


def test_draw_takes_no_token_without_probability_at_the_ends():
    logits = torch.tensor([[-np.inf, 0.0, -np.inf, 0.0, -np.inf]])
    for u, want in ((0.0, 1), (0.4999, 1), (0.5001, 3), (1 - 2**-53, 3)):
        assert sampling.draw(logits, torch.tensor([u], dtype=torch.float64)).tolist() == [want]


@pytest.mark.parametrize("units", [1, 3])
def test_draws_made_ahead_are_those_of_their_positions(units):
    sampler = make()
    params = SamplingParams(temperature=1.0)
    for slot in (1, 2):
        sampler.set(slot, params, seed=slot)
    b = batch([1, 2], [units] * 2)
    keys = np.concatenate([draws.keys(slot, 1) for slot in (1, 2)])
    position = np.zeros(2, np.int64)
    for turn in range(4 * AHEAD):
        b.use["sampler"] = step = sampler.plan(b, write=True)
        position += units
        assert step.u.numpy()[0].tolist() == draws.uniform(keys, position).tolist()
        if turn == 5:
            sampler.commit(b, np.array([0, units]))
            position[0] -= units
        elif turn == 13:
            sampler.set(2, params, seed=2)
            position[1] = 0
        else:
            sampler.commit(b, b.units)


def test_numbers_too_small_to_divide_by_leave_a_token_to_choose():
    sampler = make()
    tiny = SamplingParams(temperature=5e-324, repetition_penalty=5e-324)
    sampler.set(1, tiny, prompt=[0, 1], output=[2])
    sampler.set(2, replace(tiny, temperature=1.0), prompt=[0, 1], output=[2])
    made, logits = step(sampler, [1, 2])[1], LOGITS.expand(2, VOCAB)
    assert torch.isfinite(made.process(logits)).all()
    assert ((made(logits) >= 0) & (made(logits) < VOCAB)).all()


def test_a_row_of_nan_draws_a_token_of_the_vocabulary_and_leaves_others_alone():
    logits = LOGITS.repeat(2, 1)
    u = torch.tensor([0.5, 0.5], dtype=torch.float64)
    sound = sampling.draw(logits, u)[1]
    logits[0] = float("nan")
    assert sampling.draw(logits, u).tolist() == [VOCAB - 1, sound]


def test_parameters_out_of_range():
    for bad in ({"temperature": -1}, {"top_p": 0}, {"top_p": 1.1}, {"min_p": 2}, {"repetition_penalty": 0}):
        with pytest.raises(ValueError, match=r"out of range|above 0"):
            SamplingParams(**bad)


def words_of(allowed, vocab):
    """Packed as a grammar packs them: least significant bit first."""
    bits = np.zeros(-(-vocab // 32) * 32, np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1, top_k=2, top_p=0.9)])
def test_a_mask_holds_for_its_row_alone_until_it_is_lifted(params):
    vocab, allowed = 71, [0, 31, 32, 63, 70]
    sampler = make(slots=3, vocab=vocab)
    for slot in (1, 2, 3):
        sampler.set(slot, params, seed=slot)
    logits = torch.randn(3, vocab, generator=torch.Generator().manual_seed(0))
    logits[:, 5] = 9.0
    step(sampler, [1, 2, 3])[1](logits)
    sampler.allow(2, words_of(allowed, vocab))
    for _ in range(20):
        tokens = step(sampler, [1, 2, 3])[1](logits).tolist()
        assert tokens[1] in allowed
        assert tokens[0] == tokens[2] == 5 or params.temperature
    best = max(allowed, key=lambda token: logits[1, token])
    assert params.temperature or tokens[1] == best
    seen = step(sampler, [1, 2, 3])[1].process(logits)
    assert set(torch.isfinite(seen[1]).nonzero()[:, 0].tolist()) <= set(allowed)
    sampler.allow(2, None)
    assert step(sampler, [1, 2, 3])[1](logits)[1] == 5 or params.temperature
    greedy = make(slots=3, vocab=vocab)
    greedy.allow(2, words_of(allowed, vocab))
    greedy.bind(2, "next")
    assert step(greedy, [1, 2, 3])[1](logits).tolist() == [5, 5, 5], "a new owner starts without a mask"
    assert params.top_k or torch.isfinite(step(sampler, [2])[1].process(logits[1:2])).all()


def test_a_mask_may_change_at_every_step_and_keeps_the_exact_distribution():
    slots = 1000
    sampler = make(slots=slots)
    rows = list(range(1, slots + 1))
    for slot in rows:
        sampler.set(slot, SamplingParams(temperature=1), seed=slot)
    drawn = {}
    for at, allowed in enumerate(([1, 2, 3], [0, 12], [4])):
        for slot in rows:
            sampler.allow(slot, words_of(allowed, VOCAB))
        drawn[at] = np.concatenate([step(sampler, rows)[1](LOGITS.expand(slots, VOCAB)).numpy() for _ in range(20)])
        p = np.zeros(VOCAB)
        p[allowed] = probabilities(LOGITS)[allowed]
        assert set(drawn[at]) == set(allowed)
        assert len(allowed) == 1 or chi_square(drawn[at], p / p.sum()) > 1e-3


def test_a_table_that_a_step_made_can_be_written_between_steps():
    sampler = Sampler(slots=2, vocab=8)
    with torch.inference_mode():
        sampler.table("counts", torch.int32)
    sampler.set(1, SamplingParams(repetition_penalty=2.0), prompt=[1], output=[2, 2])
    assert sampler.table("counts", torch.int32)[1, 2] == 2
