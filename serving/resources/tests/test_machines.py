"""State machines over the resources, and faults planted in them, which the machines must find."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from serving.resources import PagedKV, StateSlots
from serving.resources.pages import Pages
from serving.resources.prefix import PrefixCache
from serving.resources.sequences import Sequences
from serving.resources.tests.machine import PagedKVMachine

BUDGET = settings(
    max_examples=2 * settings.default.max_examples,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
HUNT = settings(
    BUDGET, max_examples=600, database=None, phases=[Phase.generate], derandomize=True, report_multiple_bugs=False
)


def test_paged_kv():
    run_state_machine_as_test(PagedKVMachine, settings=BUDGET)


def leak(patch):
    drop = Pages.drop
    patch.setattr(Pages, "drop", lambda self, pages: drop(self, pages[:-1] if len(pages) > 3 else pages))


def double_free(patch):
    release = PagedKV.release

    def again(self, owner):
        held = self._held.get(owner)
        pages = [page for seq in held.seqs.values() for page in self.seqs.table[seq, :1].tolist()] if held else []
        release(self, owner)
        self.pages._free.extend(page for page in pages if page)

    patch.setattr(PagedKV, "release", again)


def stale_block_table(patch):
    drop = Sequences.drop

    def keep_row(self, seq):
        row = self.table[seq].copy()
        drop(self, seq)
        self.table[seq] = row

    patch.setattr(Sequences, "drop", keep_row)


def stale_slot(patch):
    release = PagedKV.release

    def keep_slot(self, owner):
        before = self.seq.copy()
        release(self, owner)
        self.seq[:] = before

    patch.setattr(PagedKV, "release", keep_slot)


def fork_shares_the_page_being_filled(patch):
    def fork(self, source, target, copy):
        used = self.pages_for(int(self.length[source]))
        self.adopt(target, self.table[source, :used].tolist())
        self.length[target] = self.length[source]

    patch.setattr(Sequences, "fork", fork)


def rollback_forgets(patch):
    patch.setattr(PagedKV, "commit", lambda self, b, kept: None)


def truncate_writes_on_shared_pages(patch):
    def truncate(self, seq, length, copy):
        self.length[seq] = min(length, self.length[seq])

    patch.setattr(Sequences, "truncate", truncate)


def forgets_who_came_back(patch):
    def share(self, pages):
        self.refs[list(pages)] += 1

    patch.setattr(Pages, "share", share)


def evicts_tails_alone(patch):
    patch.setattr(PrefixCache, "evict", PrefixCache._evict_tails)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(forgets_who_came_back, marks=pytest.mark.nightly),
        pytest.param(evicts_tails_alone, marks=pytest.mark.nightly),
        leak,
        double_free,
        stale_block_table,
        stale_slot,
        fork_shares_the_page_being_filled,
        rollback_forgets,
        truncate_writes_on_shared_pages,
    ],
)
def test_the_machine_finds(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, ValueError, IndexError, ExceptionGroup)):
        run_state_machine_as_test(PagedKVMachine, settings=HUNT)


class StateSlotsMachine(RuleBasedStateMachine):
    """Owners take slots, write their state, lose their slot to others, come back, and leave."""

    kind = StateSlots

    def __init__(self) -> None:
        super().__init__()
        self.state = self.kind(slots=3, owners=5, state={"h": ((2,), torch.float32)})
        self.expected: dict[str, float] = {}
        self.slots: dict[int, str] = {}
        self.count = 0

    def some(self, index):
        return sorted(self.expected)[index % len(self.expected)]

    @rule(slot=st.integers(1, 3))
    def admit(self, slot):
        self.count += 1
        owner = f"o{self.count}"
        assert self.state.reserve(owner, ("main",), 1) == (len(self.expected) < 5)
        if len(self.expected) < 5:
            self.expected[owner] = 0.0
            self.take(slot, owner)

    def take(self, slot, owner):
        self.state.bind(slot, owner)
        self.slots = {at: name for at, name in self.slots.items() if name != owner}
        self.slots[slot] = owner

    @precondition(lambda self: self.expected)
    @rule(slot=st.integers(1, 3), who=st.integers(0, 99))
    def bind(self, slot, who):
        self.take(slot, self.some(who))

    @precondition(lambda self: self.slots)
    @rule(who=st.integers(0, 99))
    def write(self, who):
        self.count += 1
        slot = sorted(self.slots)[who % len(self.slots)]
        self.state.tables["h"][slot] = self.count
        self.expected[self.slots[slot]] = self.count

    @precondition(lambda self: self.expected)
    @rule(who=st.integers(0, 99), again=st.booleans())
    def release(self, who, again):
        owner = self.some(who)
        for _ in range(1 + again):
            self.state.release(owner)
        del self.expected[owner]
        self.slots = {at: name for at, name in self.slots.items() if name != owner}

    @precondition(lambda self: len(self.expected) > 1)
    @rule(who=st.integers(0, 99), other=st.integers(0, 99))
    def copy(self, who, other):
        source, target = self.some(who), self.some(other)
        self.state.restore(target, self.state.save(source))
        self.expected[target] = self.expected[source]

    @invariant()
    def owners_have_their_state(self):
        for owner, value in self.expected.items():
            saved = self.state.save(owner)
            assert saved.get("h", torch.zeros(2)).tolist() == [value, value]
        for slot, owner in self.slots.items():
            assert self.state.tables["h"][slot].tolist() == [self.expected[owner]] * 2

    @invariant()
    def nothing_is_left_behind(self):
        assert set(self.state._owners) == set(self.expected)
        assert self.state._owner == self.slots
        assert not set(self.state._parked) & set(self.slots.values())
        assert self.state.free + len(self.expected) == 5


def test_state_slots():
    run_state_machine_as_test(StateSlotsMachine, settings=BUDGET)


def not_zeroed(patch):
    restore = StateSlots.restore
    patch.setattr(StateSlots, "restore", lambda self, owner, state: restore(self, owner, state) if state else None)


def not_carried(patch):
    patch.setattr(StateSlots, "save", lambda self, owner: {})


def kept_after_release(patch):
    patch.setattr(StateSlots, "release", lambda self, owner: self._owners.pop(owner, None))


@pytest.mark.parametrize("fault", [not_zeroed, not_carried, kept_after_release])
def test_the_state_machine_finds(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, KeyError, ExceptionGroup)):
        run_state_machine_as_test(StateSlotsMachine, settings=HUNT)


def test_pages_refuse_a_double_free_and_sharing_what_is_free():
    pages = Pages(3)
    taken = pages.take(2)
    pages.share(taken[:1])
    pages.drop(taken)
    pages.drop(taken[:1])
    assert pages.free == 3
    with pytest.raises(ValueError, match="given back twice"):
        pages.drop(taken[:1])
    with pytest.raises(ValueError, match="cannot be shared"):
        pages.share([2])
    assert not np.any(pages.refs)
