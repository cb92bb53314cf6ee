"""A state machine over the engine: requests come, step, append, fork, are read, fail, leave, and make room.

After every rule all slots and pages are accounted for, and every client has the beginning of what it should get. In
the end all have got all of it, and nothing is held.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from serving.core import admission, preemption
from serving.core.buffer import StreamBuffer
from serving.core.contract import Packed
from serving.core.streams import Available
from serving.core.tests import parrot
from serving.core.tests.parrot import Parrot, Part
from serving.core.tests.stepper import Stepper
from serving.errors import Cancelled, StepFailed
from serving.resources import PagedKV, Sampler, StateSlots, snapshots
from serving.resources.pages import Pages

ROWS, PAGES = 4, 18
CI = 200
BUDGET = settings(
    max_examples=max(CI, settings.default.max_examples),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
STEMS = [(1, 2, 3), tuple(range(5, 18)), (*range(5, 15), 90, 91, 92, 93, 94), (40,) * 9]
PARTS = st.builds(Part, st.sampled_from(STEMS), st.integers(1, 16))
pick = st.integers(0, 1 << 16)


class EngineMachine(RuleBasedStateMachine):
    """Four slots, pages for one whole request and a little more: somebody always waits or has to leave."""

    @initialize(
        preempt=st.sampled_from(["offload", "recompute"]), depth=st.sampled_from([1, 2]), overbooked=st.booleans()
    )
    def begin(self, preempt, depth, overbooked):
        self.port = parrot.port(ROWS, PAGES if overbooked else ROWS * 10, preempt)
        admission = {"kv": "expected"} if overbooked else {}
        self.it = Stepper(self.port, ROWS, admission, depth)
        self.clients, self.expected, self.sounds = {}, {}, {}
        self.errors = {}
        self.count = 0

    def some(self, index, names=None):
        names = sorted(self.clients if names is None else names)
        return names[index % len(names)]

    def add(self, parts, seed, priority, error=None):
        self.count += 1
        name = f"r{self.count}"
        self.expected[name] = [token for part in parts for token in parrot.spoken(part, seed)]
        self.errors[name] = error
        self.clients[name] = self.it.enter(name, {"parts": parts}, seed, priority)
        return name

    @rule(parts=st.lists(PARTS, min_size=1, max_size=2), seed=st.integers(0, 2), priority=st.sampled_from([0, 0, 1]))
    def speaks(self, parts, seed, priority):
        self.add(parts, seed, priority)

    @rule(stem=st.sampled_from(STEMS), until=st.tuples(st.integers(1, 20), st.integers(1, 20)), seed=st.integers(0, 2))
    def forks(self, stem, until, seed):
        """Two go on from one beginning."""
        self.add([Part(stem, until[0]), Part(stem, until[1])], seed, 0)

    @rule(part=PARTS, left=st.integers(1, 9), seed=st.integers(0, 2))
    def speaks_and_fails(self, part, left, seed):
        fails = min(left, part.until)
        self.add([Part(part.prompt, part.until, fails)], seed, 0, StepFailed)

    @rule()
    def listens(self):
        self.count += 1
        name = f"l{self.count}"
        self.sounds[name], self.errors[name] = [], None
        self.clients[name] = self.it.enter(name, {})

    def open_sounds(self):
        return [name for name in self.sounds if name not in self.expected and self.errors[name] is None]

    @precondition(lambda self: self.open_sounds())
    @rule(who=pick, items=st.lists(st.integers(0, 9), min_size=1, max_size=7))
    def appends(self, who, items):
        name = self.some(who, self.open_sounds())
        self.sounds[name] += items
        self.it.requests.append(name, "sound", Packed.one(np.array(items)))
        self.it.turn()

    @precondition(lambda self: self.open_sounds())
    @rule(who=pick)
    def closes(self, who):
        name = self.some(who, self.open_sounds())
        self.expected[name] = parrot.heard(self.sounds[name])
        self.it.requests.append(name, "sound", None)
        self.it.turn()

    @rule(count=st.integers(1, 12))
    def steps(self, count):
        while count and self.it.launch():
            count -= 1

    @precondition(lambda self: self.clients)
    @rule(who=pick, most=st.integers(1, 20))
    def reads(self, who, most):
        """Others are slow: they read nothing meanwhile."""
        name = self.some(who)
        self.it.read(name, self.clients[name], most)

    @precondition(lambda self: self.clients)
    @rule(who=pick)
    def leaves(self, who):
        name = self.some(who)
        if self.clients[name].end is None:
            self.errors[name] = Cancelled
        self.it.requests.cancel(name)
        self.it.turn()

    @precondition(lambda self: self.clients)
    @rule(who=pick)
    def makes_room(self, who):
        """Preempted by hand; whoever waits comes first, and it resumes when it can."""
        self.it.requests.preempt(self.some(who))
        self.it.turn()

    def wanted(self, name):
        return self.expected.get(name, parrot.heard(self.sounds.get(name, [])))

    @invariant()
    def clients_have_the_beginning_of_what_they_should_get(self):
        for name, client in self.clients.items():
            wanted, sent = self.wanted(name), client.sent
            assert sent == wanted[: len(sent)], name
            if client.end is not None and client.end.error is None:
                assert sent == wanted, f"{name} has ended"
            elif client.end is not None:
                assert type(client.end.error) is self.errors[name], client.end.error

    def pieces(self):
        running = [piece for request in self.it.requests._all.values() for piece in request.running.values()]
        return {id(piece): piece for piece in (*running, *self.it.requests._closing)}.values()

    @invariant()
    def slots_are_held_once_or_free(self):
        model = self.it.model
        assert len(set(model.free)) == len(model.free)
        seated = [piece.slot for piece in self.pieces() if piece.slot]
        assert len(set(seated)) == len(seated)
        assert not set(seated) & set(model.free)
        assert all(piece.slot or piece.parked or not piece.seats for piece in model.waiting)

    @invariant()
    def pages_are_what_owners_and_the_cache_hold(self):
        kv = self.port.graph.resources["kv"]
        users = Counter(entry.page for entry in kv.cache._entries.values())
        for held in kv._held.values():
            for seq in held.seqs.values():
                users.update(kv.seqs.table[seq, : kv.seqs.held[seq]].tolist())
                own = kv.seqs.table[seq, int(kv.seqs.length[seq]) // parrot.PAGE : kv.seqs.held[seq]]
                assert (kv.pages.refs[own] == 1).all(), "a page that will be written is nobody else's"
        assert users == Counter(dict(enumerate(kv.pages.refs.tolist()))), "references are who uses the page"
        assert kv.pages.free + len(users) == kv.capacity

    @invariant()
    def rows_are_counted(self):
        for name, node in self.it.model.nodes.items():
            seats = [p.seats[name] for p in self.pieces() if name in p.seats and not p.parked]
            assert node.live == sum(not seat.done for seat in seats)

    def teardown(self):
        if not hasattr(self, "it"):
            return
        for name in self.open_sounds():
            self.it.requests.append(name, "sound", None)
            self.expected[name] = parrot.heard(self.sounds[name])
        self.it.turn()
        for _ in range(5000):
            moved = self.it.launch()
            unread = [name for name, client in self.clients.items() if client.unread]
            for name in unread:
                self.it.read(name, self.clients[name])
            if not (moved or unread):
                break
        for name, client in self.clients.items():
            assert client.end is not None, f"{name} never ends"
        self.clients_have_the_beginning_of_what_they_should_get()
        self.nothing_is_held()

    def nothing_is_held(self):
        resources, model = self.port.graph.resources, self.it.model
        assert sorted(model.free) == list(range(1, ROWS + 1))
        assert not model.waiting
        assert resources["kv"].free == PAGES or resources["kv"].free == ROWS * 10
        assert not resources["kv"]._held
        assert not resources["sampler"]._owners
        assert all(resources[name].free == ROWS for name in ("state", "heard"))
        assert all(not n.live and not n.groups and not n.inflight for n in model.nodes.values())
        assert not self.it.requests._all
        pressure = self.it.requests.pressure["paper"]
        assert not pressure.leaving
        assert not pressure.starved


@pytest.fixture(autouse=True)
def _quiet():
    """Rows that fail are meant to: their tracebacks would be most of the time that this takes."""
    log = logging.getLogger("toolkit.engine")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


def test_engine():
    run_state_machine_as_test(EngineMachine, settings=BUDGET)


@pytest.mark.parametrize("moment", range(12))
def test_a_request_that_is_asked_to_leave_may_end_in_the_step_in_which_another_does(moment):
    it = Stepper(parrot.port(ROWS, ROWS * 10, "offload"), ROWS, depth=1)
    part = Part(STEMS[0], 3)
    clients = {name: it.enter(name, {"parts": [part]}) for name in "ab"}
    for step in range(100):
        if step == moment:
            it.requests.preempt("b")
        if not it.launch():
            break
    assert [client.end is not None for client in clients.values()] == [True, True]
    assert all(client.sent == parrot.spoken(part, 0) for client in clients.values())
    assert len(it.model.free) == ROWS
    assert not it.model.waiting


def leaked_pages(patch):
    patch.setattr(admission, "release", lambda model, owned: owned.clear())


def leaked_slot(patch):
    park = preemption.park

    def keep_slot(piece):
        park(piece)
        piece.request.model.free.pop()

    patch.setattr(preemption, "park", keep_slot)


def slot_given_back_twice(patch):
    park = preemption.park

    def again(piece):
        slot = piece.slot
        park(piece)
        piece.request.model.free.append(slot)

    patch.setattr(preemption, "park", again)


def page_given_back_twice(patch):
    patch.setattr(Pages, "share", lambda self, pages: None)


def lost_coalesced_chunk(patch):
    write = StreamBuffer.write
    patch.setattr(
        StreamBuffer, "write", lambda self, values, count: write(self, values, count if not self.backlog else 0)
    )


def missed_final_chunk(patch):
    ready = StreamBuffer.ready

    def never_empty(self):
        chunk = ready(self)
        return None if chunk is not None and chunk.stop == chunk.fresh else chunk

    patch.setattr(StreamBuffer, "ready", never_empty)


def said_again_after_resuming(patch):
    class Final(Available):
        def next(self, fresh, written, ended):
            chunk = super().next(fresh, written, ended)
            return chunk and replace(chunk, final=chunk.stop == written)

    patch.setattr(preemption, "Available", Final)


def resumed_without_its_tables(patch):
    patch.setattr(Parrot, "restore", lambda self, row, saved: None)


def resumed_without_its_draws(patch):
    patch.setattr(Sampler, "restore", lambda self, owner, state: None)


def state_not_taken_back(patch):
    patch.setattr(StateSlots, "commit", lambda self, b, kept: None)


def pages_not_taken_back(patch):
    patch.setattr(PagedKV, "commit", lambda self, b, kept: None)


def snapshot_of_another_prompt(patch):
    patch.setattr(snapshots, "_keys", lambda content, lengths: ((length, b"") for length in lengths))


FAULTS = [
    leaked_pages,
    leaked_slot,
    slot_given_back_twice,
    page_given_back_twice,
    lost_coalesced_chunk,
    missed_final_chunk,
    said_again_after_resuming,
    resumed_without_its_tables,
    resumed_without_its_draws,
    state_not_taken_back,
    pages_not_taken_back,
    snapshot_of_another_prompt,
]


def wander(seed, moves=30):
    """The machine's rules in an order of its own, cheaper than Hypothesis's: for faults that are there to be found."""
    draw, it = Random(seed), EngineMachine()
    it.begin(draw.choice(["offload", "recompute"]), draw.choice([1, 2]), overbooked=True)
    rules = [
        lambda: it.speaks([Part(draw.choice(STEMS), draw.randint(1, 20)) for _ in range(2)], draw.randint(0, 2), 0),
        lambda: it.forks(draw.choice(STEMS), (draw.randint(1, 20), draw.randint(1, 20)), 0),
        lambda: it.speaks_and_fails(Part(draw.choice(STEMS), 9), draw.randint(1, 9), 0),
        lambda: it.steps(12),
        lambda: it.steps(5),
        lambda: it.clients and it.makes_room(draw.randint(0, 99)),
        lambda: it.clients and it.reads(draw.randint(0, 99), 20),
        lambda: it.clients and draw.random() < 0.3 and it.leaves(draw.randint(0, 99)),
        lambda: it.listens() if not it.open_sounds() else it.appends(draw.randint(0, 99), [1, 2, 3, 4]),
    ]
    for _ in range(moves):
        draw.choice(rules)()
        it.clients_have_the_beginning_of_what_they_should_get()
        it.slots_are_held_once_or_free()
        it.pages_are_what_owners_and_the_cache_hold()
        it.rows_are_counted()
    it.teardown()


def test_a_walk_without_a_fault_is_well():
    """The control of the tests below."""
    for seed in range(5):
        wander(seed)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_machine_finds(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, ValueError, IndexError, KeyError, RuntimeError)):
        deque((wander(seed) for seed in range(40)), 0)
