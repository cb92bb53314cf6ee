"""The delta rule in chunks and token by token is one recurrence, and in `exact` one sequence of bits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from models.components.layers import deltanet
from models.components.layers.delta_rule import Inputs, chunked, recurrent, recurrent_exact
from models.components.layers.deltanet import DeltaNetShape, Recurrence
from models.components.layers.norms import unit
from models.components.layers.spans import Spans
from serving.resources.tests.batches import batch

SHAPE = DeltaNetShape(dim=64, k_heads=2, v_heads=4, k_dim=16, v_dim=16, kernel=4)
CLOSE = 1e-5
shapes = st.tuples(
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3]), st.sampled_from([8, 16]), st.sampled_from([8, 24])
)


def drawn(seed, count, heads, group, dk, dv):
    """q, k, v, g, beta of so many tokens and a state."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

    q, k = unit(normal(count, heads, dk)) * dk**-0.5, unit(normal(count, heads, dk))
    v, state = normal(count, heads * group, dv), normal(heads * group, dk, dv)
    g = -torch.from_numpy(rng.exponential(0.5, (count, heads * group)).astype(np.float32))
    return Inputs(q, k, v, g, torch.sigmoid(normal(count, heads * group))), state


def one_by_one(rule, tokens, state):
    state = state.clone()[None]
    return torch.cat([rule(tokens.at(slice(i, i + 1)), state) for i in range(len(tokens.q))]), state[0]


def by_definition(tokens, state):
    """The recurrence as it is written, in float64."""
    q, k, v, g, beta = (x.double() for x in tokens)
    s, group, out = state.double(), state.shape[0] // q.shape[1], []
    for t in range(len(q)):
        row = []
        for h in range(len(s)):
            key, query = k[t, h // group], q[t, h // group]
            decayed = g[t, h].exp() * s[h]
            s = s.clone()
            s[h] = decayed + torch.outer(key, beta[t, h] * (v[t, h] - decayed.T @ key))
            row.append(s[h].T @ query)
        out.append(torch.stack(row))
    return torch.stack(out), s


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 200), shapes, st.sampled_from([1, 3, 16, 64]), st.integers(0, 2**31))
def test_chunks_are_the_recurrence(count, shape, chunk, seed):
    tokens, state = drawn(seed, count, *shape)
    expected, after = one_by_one(recurrent, tokens, state)
    found = chunked(tokens, state, chunk=chunk)
    assert (found - expected).abs().max() <= CLOSE
    assert (state - after).abs().max() <= CLOSE


@pytest.mark.parametrize("rule", [recurrent, recurrent_exact])
def test_a_step_is_the_definition(rule):
    tokens, state = drawn(3, 12, 2, 2, 16, 24)
    expected, after = by_definition(tokens, state)
    found, left = one_by_one(rule, tokens, state)
    assert (found - expected).abs().max() <= CLOSE
    assert (left - after).abs().max() <= CLOSE


def tables(slots):
    found = {name: torch.zeros(slots + 1, *shape) for name, (shape, _) in SHAPE.tables([0]).items()}
    found["delta.0"].copy_(torch.randn(found["delta.0"].shape, generator=torch.Generator().manual_seed(1)))
    return found


def layer():
    made = deltanet.GatedDeltaNet(SHAPE)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return made.requires_grad_(False)


def run(made, x, held, schedule, *, exact):
    """x [slots, T, D] in steps: each a list of (slot, units). Outputs by slot."""
    out, at = {slot: [] for slot in range(1, len(x) + 1)}, dict.fromkeys(range(1, len(x) + 1), 0)
    for step in schedule:
        slots, units = zip(*step, strict=True)
        packed = torch.cat([x[slot - 1, at[slot] : at[slot] + count] for slot, count in step])
        b = batch(slots, units, total=len(packed) + 3)  # with padding behind
        y = made(torch.cat([packed, torch.zeros(3, x.shape[-1])]), 0, Recurrence(held, Spans.of(b), exact))
        for part, (slot, count) in zip(y[: len(packed)].split(list(units)), step, strict=True):
            out[slot].append(part)
            at[slot] += count
    return torch.stack([torch.cat(out[slot]) for slot in sorted(out)])


@st.composite
def schedules(draw, slots, length):
    """Steps until every slot has had all its tokens: any rows, any units, any order."""
    left = dict.fromkeys(range(1, slots + 1), length)
    steps = []
    while any(left.values()):
        chosen = draw(st.permutations([slot for slot in left if left[slot]]))[: draw(st.integers(1, slots))]
        step = [(slot, draw(st.integers(1, left[slot]))) for slot in chosen]
        for slot, count in step:
            left[slot] -= count
        steps.append(step)
    return steps


@settings(deadline=None, max_examples=40)
@given(schedules(3, 12))
def test_any_schedule_of_rows_gives_what_each_row_gives_alone(schedule):
    x = torch.randn(3, 12, SHAPE.dim, generator=torch.Generator().manual_seed(2))
    made = layer()
    whole = [[(slot, 12)] for slot in (1, 2, 3)]
    for exact, close in ((True, 0.0), (False, CLOSE)):
        held, alone = tables(3), tables(3)
        expected = run(made, x, alone, whole, exact=exact)
        found = run(made, x, held, schedule, exact=exact)
        assert (found - expected).abs().max() <= close
        for name in held:
            assert (held[name][1:] - alone[name][1:]).abs().max() <= close
            assert torch.equal(held[name][0], tables(3)[name][0]), "the sink is nobody's"


def test_a_row_that_goes_on_from_another_slots_state_is_seen():
    """The control: with the slots changed about, the outputs differ."""
    x = torch.randn(2, 6, SHAPE.dim, generator=torch.Generator().manual_seed(2))
    held = tables(2)
    expected = run(layer(), x, tables(2), [[(1, 3), (2, 3)], [(1, 3), (2, 3)]], exact=True)
    run(layer(), x, held, [[(1, 3), (2, 3)]], exact=True)
    swapped = {name: table[[0, 2, 1]] for name, table in held.items()}
    again = run(layer(), x[:, 3:], swapped, [[(1, 3), (2, 3)]], exact=True)
    assert (again - expected[:, 3:]).abs().max() > 1e-3
