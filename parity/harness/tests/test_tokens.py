"""Token classes: equal, tie, near-tie, divergent; and what a difference hides is tested teacher-forced."""

import torch

from parity.harness.tokens import compare_tokens, noise_floor

# Row i prefers token i; the runner-up is token 9 by these margins.
MARGINS = [5.0, 1e-7, 0.01, 4.0]


def logits():
    table = torch.zeros(4, 10)
    for step, margin in enumerate(MARGINS):
        table[step, step] = 1.0
        table[step, 9] = 1.0 - margin
    return table


def forced(*wrong):
    def force(tokens):
        assert list(tokens) == [0, 1, 2, 3]
        table = logits()
        for step in wrong:
            table[step, 9] = 7.0
        return table

    return force


def classify(actual, wrong=(), **kwargs):
    return compare_tokens([0, 1, 2, 3], actual, logits(), force=forced(*wrong), noise=0.02, **kwargs)


def test_equal_tokens_are_exact():
    assert classify([0, 1, 2, 3]).kind == "exact"


def test_a_choice_a_few_ulp_apart_is_a_tie():
    result = classify([0, 9, 2, 3], wrong=[1], allowed="tie")
    assert result.kind == "tie"
    assert result
    assert not classify([0, 9, 2, 3], wrong=[1])


def test_a_choice_under_the_noise_floor_is_a_near_tie():
    result = classify([0, 1, 9, 9], wrong=[2], allowed="near-tie")
    assert (result.kind, result.first.index) == ("near-tie", 2)
    assert result


def test_a_clear_margin_is_divergent_and_says_where():
    result = classify([9, 1, 2, 3], wrong=[0], allowed="near-tie")
    assert result.kind == "divergent"
    assert not result
    assert "step 0 of 4: expected 0, got 9, margin 5" in str(result)


def test_a_fault_behind_a_tie_is_found_by_teacher_forcing():
    result = classify([0, 9, 9, 9], wrong=[1, 3], allowed="near-tie")
    assert result.kind == "divergent"
    assert [step.index for step in result.forced] == [1, 3]


def test_a_tie_with_nothing_tested_behind_it_does_not_pass():
    result = compare_tokens([0, 1, 2, 3], [0, 9, 5, 5], logits(), noise=0.02, allowed="near-tie")
    assert not result
    assert "untested" in str(result)


def test_stopping_early_or_late_is_divergent():
    assert not classify([0, 1, 2], allowed="near-tie")
    assert not classify([0, 1, 2, 3, 4], allowed="near-tie")


def test_the_noise_floor_is_twice_the_largest_change_and_skips_masked_tokens():
    a = logits()
    a[:, 8] = -torch.inf
    b = a.clone()
    b[2, 9] += 0.01
    assert abs(noise_floor(a, b) - 0.02) < 1e-6
