"""StateSlots: zeroed when taken, carried by owners that outlive their slot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serving.errors import SetupError
from serving.resources import StateSlots
from serving.resources.tests.batches import batch


def make(slots=3, owners=None):
    return StateSlots(slots=slots, owners=owners, state={"h": ((4,), torch.float32), "n": ((), torch.int64)})


def take(state, slot, owner):
    assert state.reserve(owner, ("main",), 1)
    state.bind(slot, owner)


def test_a_step_gets_the_tables_and_indexes_them_by_slot():
    state = make()
    take(state, 2, "a")
    tables = state.plan(batch([2], [1], size=2), write=True)
    tables["h"][torch.tensor([2, 0])] += 1
    assert tables["h"].shape == (4, 4)
    assert state.tables["h"][2].tolist() == [1, 1, 1, 1]


def test_zeroed_when_a_new_owner_takes_the_slot():
    state = make()
    take(state, 1, "a")
    state.tables["h"][1] = 5
    state.tables["n"][1] = 7
    state.release("a")
    take(state, 1, "b")
    assert not state.tables["h"][1].any()
    assert state.tables["n"][1] == 0


def test_an_owner_keeps_its_state_over_slots():
    state = make(owners=3)
    take(state, 1, "session")
    state.tables["h"][1] = 5
    take(state, 1, "other")
    assert not state.tables["h"][1].any()
    state.bind(2, "session")
    assert state.tables["h"][2].tolist() == [5, 5, 5, 5]
    state.bind(3, "session")
    assert state.tables["h"][3].tolist() == [5, 5, 5, 5]
    state.bind(3, "session")
    assert state.tables["h"][3].tolist() == [5, 5, 5, 5]


def test_save_and_restore():
    state = make()
    take(state, 1, "a")
    state.tables["h"][1] = 3
    saved = state.save("a")
    state.tables["h"][1] = 9
    state.restore("a", saved)
    assert state.tables["h"][1].tolist() == [3, 3, 3, 3]


def test_capacity_and_release():
    state = make(slots=2)
    assert state.need(("a", "b"), 100) == 1
    take(state, 1, "a")
    take(state, 2, "b")
    assert not state.reserve("c", ("main",), 1)
    assert state.reserve("a", ("main",), 1), "it has its share already"
    state.release("a")
    state.release("a")
    assert state.free == 1
    state.release("b")
    assert [len(held) for held in (state._owners, state._owner, state._parked)] == [0, 0, 0]


def test_refuses_an_empty_state():
    with pytest.raises(SetupError):
        StateSlots(slots=1, state={})


def test_a_snapshot_begins_another_owner_and_the_budget_holds():
    """One state is 24 bytes; the one used longest ago goes."""
    state = StateSlots(slots=3, state={"h": ((4,), torch.float32), "n": ((), torch.int64)}, snapshots=60)
    content = {"main": [1, 2, 3, b"x" * 32, 5, 6]}
    take(state, 1, "a")
    for length in (2, 4, 6):
        state.tables["h"][1] = length
        state.publish("a", {"main": content["main"][:length]})
        assert len(state.snapshots) <= 2
    assert state.known(content) == [4], "2 has made room; after 6 nothing is left to compute"
    assert state.known({"main": [*content["main"], 7]}) == [4, 6]
    assert state.known({"main": [1, 2, 3, b"y" * 32, 5, 6]}) == []
    take(state, 2, "b")
    state.adopt("b", content, 4)
    assert state.tables["h"][2].tolist() == [4] * 4
    assert state.tables["h"][1].tolist() == [6] * 4


def test_without_a_budget_there_are_no_snapshots():
    state = make()
    take(state, 1, "a")
    state.publish("a", {"main": [1, 2]})
    assert state.known({"main": [1, 2, 3]}) == []


def step(state, slots, value):
    """Launch a step that adds `value` to these slots; returns its batch."""
    b = batch(slots, [1] * len(slots), size=len(slots) + 1)
    state.plan(b, write=True)["h"][b.slots] += value
    return b


def test_a_step_that_fails_is_taken_back_row_by_row():
    state = StateSlots(slots=3, state={"h": ((4,), torch.float32)}, rollback=True)
    take(state, 1, "a")
    take(state, 2, "b")
    state.commit(step(state, [1, 2], 1), np.array([1, 1]))
    ahead = [step(state, [2, 1], 10), step(state, [1, 2], 100)]
    assert state.tables["h"][1:3, 0].tolist() == [111, 111]
    state.commit(ahead[0], np.array([1, 1]))
    state.commit(ahead[1], np.array([0, 1]))
    assert state.tables["h"][1:3, 0].tolist() == [11, 111]
    with pytest.raises(ValueError, match="whole step"):
        state.commit(batch_of(state, [1], [3]), np.array([2]))


def batch_of(state, slots, units):
    b = batch(slots, units)
    state.plan(b, write=True)["h"]
    return b


def test_a_step_that_was_never_launched_takes_nothing_back():
    state = StateSlots(slots=2, state={"h": ((4,), torch.float32)}, rollback=True)
    take(state, 1, "a")
    first = step(state, [1], 1)
    skipped = batch([1], [1], size=2, buffers=first.buffers)
    state.plan(skipped, write=True)
    state.commit(first, np.array([1]))
    state.commit(skipped, np.array([0]))
    assert state.tables["h"][1, 0] == 1
