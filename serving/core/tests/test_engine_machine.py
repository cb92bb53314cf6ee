"""A state machine over the engine: requests come, step, append, fork, are read, fail, leave, and make room.

After every rule all slots and pages are accounted for, and every client has the beginning of what it should get. In
the end all have got all of it, and nothing is held.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
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

from serving.core.contract import Packed
from serving.core.tests import parrot
from serving.core.tests.parrot import Part
from serving.core.tests.stepper import Stepper
from serving.errors import Cancelled, StepFailed

ROWS, PAGES = 4, 18
CI = 200
BUDGET = settings(
    max_examples=max(CI, settings.default.max_examples),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
STEMS = [(1, 2, 3), tuple(range(5, 18)), (*range(5, 15), 90, 91, 92, 93, 94), (40,) * 9]
PARTS = st.builds(Part, st.sampled_from(STEMS), st.integers(1, 20))
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

    @rule(parts=st.lists(PARTS, min_size=1, max_size=3), seed=st.integers(0, 2), priority=st.sampled_from([0, 0, 1]))
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
        for _ in range(2000):
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
        assert not (pressure.leaving or pressure.starved)


def test_engine():
    run_state_machine_as_test(EngineMachine, settings=BUDGET)
