"""A state machine over PagedKV: whatever happens, what is stored is what was kept, and every page is accounted for."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serving.errors import Overloaded
from serving.resources import PagedKV
from serving.resources.tests.batches import batch

LANES = ("main", "other")
SLOTS, PAGES, SIZE = 4, 20, 3
pick = st.integers(0, 1 << 16)


class PagedKVMachine(RuleBasedStateMachine):
    """Owners are admitted, write, run ahead, roll back, fork, go back, leave and return; each token is a number."""

    kind = PagedKV

    def __init__(self) -> None:
        super().__init__()
        self.kv = self.kind(
            layers=1,
            kv_heads=1,
            head_dim=1,
            page_size=SIZE,
            pages=PAGES,
            slots=SLOTS,
            max_len=15,
            lanes=LANES,
            owners=5,
        )
        self.stored: dict[str, dict[str, list[int]]] = {}  # what every owner's lanes should hold
        self.slots: dict[int, str] = {}
        self.parked: list[tuple[dict, dict, int]] = []
        self.published: list[list[int]] = []
        self.count = 0

    def fresh(self) -> int:
        self.count += 1
        return self.count

    def some(self, index: int) -> str:
        return sorted(self.stored)[index % len(self.stored)]

    def room(self, owner: str, lane: str) -> int:
        seq = self.kv._held[owner].seqs[lane]
        return int(self.kv.seqs.room[seq]) - len(self.stored[owner][lane])

    @rule(units=st.integers(1, 15), lanes=st.sampled_from([LANES, LANES[:1]]), slot=st.integers(1, SLOTS))
    def admit(self, units, lanes, slot):
        owner = f"o{self.fresh()}"
        spare = self.kv.pages.free + self.kv.cache.evictable()
        fits = self.kv.need(lanes, units) <= spare and len(self.kv.seqs.spare) >= len(lanes)
        assert self.kv.reserve(owner, lanes, units) == fits
        if fits:
            self.stored[owner] = {lane: [] for lane in lanes}
            self.kv.bind(slot, owner)
            self.slots[slot] = owner

    @precondition(lambda self: self.stored)
    @rule(who=pick, units=st.integers(1, 8))
    def extend(self, who, units):
        owner = self.some(who)
        before = {lane: self.room(owner, lane) for lane in self.stored[owner]}
        if self.kv.reserve(owner, tuple(self.stored[owner]), units):
            assert all(self.room(owner, lane) >= max(units, before[lane]) for lane in before)
        else:
            assert {lane: self.room(owner, lane) for lane in before} == before

    def step(self, units, slots, given=None):
        """Plan and launch a step over these slots, all lanes of each; returns the batch and what it wrote."""
        lanes = [tuple(self.stored[self.slots[slot]]) for slot in slots]
        b = batch(slots, units, lanes, size=len(slots) + 1, total=sum(map(len, lanes)) * max(units) + 1)
        step = self.kv.plan(b, write=True)
        wrote = given or [
            [[self.fresh() for _ in range(u)] for _ in names] for u, names in zip(units, lanes, strict=True)
        ]
        flat = torch.zeros(b.total)
        values = [value for row in wrote for lane in row for value in lane]
        flat[: len(values)] = torch.tensor(values)
        step.write(0, flat.view(-1, 1, 1), -flat.view(-1, 1, 1))
        return b, wrote

    def keep(self, b, wrote, kept):
        self.kv.commit(b, np.array(kept))
        for slot, row, count in zip(b.index.tolist(), wrote, kept, strict=True):
            owner = self.slots[slot]
            for lane, values in zip(self.stored[owner], row, strict=True):
                self.stored[owner][lane] += values[:count]

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def write(self, data):
        """One step, or two of which the second ran ahead of verdicts that end some rows."""
        owners = {owner: slot for slot, owner in self.slots.items()}
        able = [
            slot for owner, slot in owners.items() if min(self.room(owner, lane) for lane in self.stored[owner]) > 0
        ]
        if not able:
            return
        slots = data.draw(st.lists(st.sampled_from(able), min_size=1, unique=True))
        least = [min(self.room(self.slots[s], lane) for lane in self.stored[self.slots[s]]) for s in slots]
        units = [data.draw(st.integers(1, room)) for room in least]
        first = self.step(units, slots)
        going = [slot for slot, unit, room in zip(slots, units, least, strict=True) if unit in (room, room - 1)]
        if going and data.draw(st.booleans()):
            ahead = self.step([1] * len(going), going)
            self.keep(*first, units)
            room = [min(self.room(self.slots[s], lane) for lane in self.stored[self.slots[s]]) for s in going]
            self.keep(*ahead, [data.draw(st.integers(0, min(1, r))) for r in room])
        else:
            self.keep(*first, [data.draw(st.integers(0, unit)) for unit in units])

    @precondition(lambda self: self.stored)
    @rule(who=pick, slot=st.integers(1, SLOTS))
    def bind(self, who, slot):
        self.slots[slot] = self.some(who)
        self.kv.bind(slot, self.slots[slot])

    def join(self, lanes, units, slot):
        """A new owner of these lanes in a slot, or None."""
        owner = f"o{self.fresh()}"
        if not self.kv.reserve(owner, tuple(lanes), units):
            return None
        self.kv.bind(slot, owner)
        self.slots[slot], self.stored[owner] = owner, {lane: [] for lane in lanes}
        return owner

    @precondition(lambda self: self.stored)
    @rule(who=pick, more=st.integers(0, 4), slot=st.integers(1, SLOTS))
    def fork(self, who, more, slot):
        source = self.some(who)
        longest = max(map(len, self.stored[source].values()))
        fork = self.join(self.stored[source], min(15, max(1, longest + more)), slot)
        if fork is not None:
            self.kv.fork(source, fork)
            self.stored[fork] = {lane: list(values) for lane, values in self.stored[source].items()}

    @precondition(lambda self: self.stored)
    @rule(who=pick, back=st.integers(1, 9))
    def truncate(self, who, back):
        owner = self.some(who)
        for lane, values in self.stored[owner].items():
            length = max(0, len(values) - back)
            try:
                self.kv.truncate(owner, length, (lane,))
            except Overloaded:
                return
            self.stored[owner][lane] = values[:length]

    @precondition(lambda self: self.stored)
    @rule(who=pick)
    def publish(self, who):
        owner = self.some(who)
        self.published.append(self.stored[owner]["main"])
        self.kv.publish(owner, {"main": self.stored[owner]["main"]})

    @precondition(lambda self: self.published)
    @rule(which=pick, slot=st.integers(1, SLOTS))
    def adopt(self, which, slot):
        content = self.published[which % len(self.published)]
        owner = self.join(LANES[:1], len(content), slot) if content else None
        if owner is not None:
            count = max(self.kv.known({"main": content}), default=0)
            assert count < len(content)
            assert count % SIZE == 0
            if count:
                self.kv.adopt(owner, {"main": content}, count)
            self.stored[owner]["main"] = content[:count]

    @precondition(lambda self: self.published)
    @rule(which=pick, more=st.integers(0, 4), slot=st.integers(1, SLOTS))
    def compute_again(self, which, more, slot):
        """What is known, without a look at what is known, and more."""
        content = self.published[which % len(self.published)]
        tokens = [*content, *(self.fresh() for _ in range(more))][:15]
        owner = self.join(LANES[:1], len(tokens), slot) if tokens else None
        if owner is not None:
            self.keep(*self.step([len(tokens)], [slot], [[tokens]]), [len(tokens)])

    @precondition(lambda self: self.stored)
    @rule(who=pick, again=st.booleans())
    def release(self, who, again):
        owner = self.some(who)
        self.forget(owner)
        if again:
            self.kv.release(owner)

    def forget(self, owner):
        self.kv.release(owner)
        del self.stored[owner]
        self.slots = {slot: name for slot, name in self.slots.items() if name != owner}

    @precondition(lambda self: self.stored)
    @rule(who=pick)
    def preempt(self, who):
        owner = self.some(who)
        state = self.kv.save(owner)
        self.parked.append((state, self.stored[owner], max(map(len, self.stored[owner].values()))))
        self.forget(owner)

    @precondition(lambda self: self.parked)
    @rule(slot=st.integers(1, SLOTS))
    def resume(self, slot):
        state, held, units = self.parked[-1]
        owner = f"o{self.fresh()}"
        if self.kv.reserve(owner, tuple(held), max(1, units)):
            self.parked.pop()
            self.kv.bind(slot, owner)
            self.kv.restore(owner, state)
            self.stored[owner], self.slots[slot] = held, owner

    @invariant()
    def every_page_is_accounted_for(self):
        seqs, pages = self.kv.seqs, self.kv.pages
        users = np.zeros(PAGES + 1, int)
        for held in self.kv._held.values():
            for seq in held.seqs.values():
                np.add.at(users, seqs.table[seq, : seqs.held[seq]], 1)
                assert not seqs.table[seq, seqs.held[seq] :].any()
        for entry in self.kv.cache._entries.values():
            users[entry.page] += 1
        assert (users == pages.refs).all(), "references are who uses the page"
        assert users[0] == 0, "the sink is nobody's"
        assert pages.free + np.count_nonzero(users) == PAGES
        entries = list(self.kv.cache._entries.values())
        assert self.kv.cache.evictable() == sum(pages.refs[entry.page] == 1 for entry in entries)
        assert sorted(entry.page for entry in entries) == np.flatnonzero(pages.kept).tolist()
        assert sorted(pages._free) == np.flatnonzero(users[1:] == 0).__add__(1).tolist()

    @invariant()
    def pages_that_will_be_written_are_not_shared(self):
        seqs = self.kv.seqs
        for held in self.kv._held.values():
            for seq in held.seqs.values():
                own = seqs.table[seq, int(seqs.length[seq]) // SIZE : seqs.held[seq]]
                assert (self.kv.pages.refs[own] == 1).all()

    @invariant()
    def what_is_stored_is_what_was_kept(self):
        for owner, lanes in self.stored.items():
            for lane, values in lanes.items():
                pages, offsets = self.kv.seqs.places(self.kv._held[owner].seqs[lane])
                assert self.kv.pool.k[0, pages, 0, offsets, 0].tolist() == values
                assert self.kv.pool.v[0, pages, 0, offsets, 0].tolist() == [-value for value in values]

    @invariant()
    def slots_find_their_owners(self):
        for slot in range(1, SLOTS + 1):
            owner = self.slots.get(slot)
            seqs = self.kv._held[owner].seqs if owner in self.stored else {}
            assert self.kv.seq[slot].tolist() == [seqs.get(lane, 0) for lane in LANES]
        assert set(self.kv._held) == set(self.stored)
        assert self.kv._owner == self.slots
        assert not self.kv._past
