"""State machines over streams and over the scheduler: nothing is lost, doubled, out of order, or left waiting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from serving.core import scheduler
from serving.core.buffer import StreamBuffer
from serving.core.contract import Edge, Offer
from serving.core.scheduler import Hold, Plan, Rules, plan
from serving.core.tests.test_scheduler import FakeNode, group, seat
from serving.core.tests.test_streams import POLICIES

BUDGET = settings(
    max_examples=max(200, settings.default.max_examples),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class StreamMachine(RuleBasedStateMachine):
    """A producer and a consumer that may take a chunk in parts, and whose steps may fail."""

    @initialize(policy=POLICIES)
    def begin(self, policy):
        self.buffer = StreamBuffer(Edge("a.x", "b.y", policy))
        self.written, self.seen, self.finals, self.ended = 0, [], 0, False

    @precondition(lambda self: not self.ended)
    @rule(count=st.integers(0, 12))
    def write(self, count):
        self.buffer.write(np.arange(self.written, self.written + count), count)
        self.written += count

    @precondition(lambda self: not self.ended)
    @rule()
    def end(self):
        self.buffer.end()
        self.ended = True

    @rule(units=st.one_of(st.none(), st.integers(1, 5)), fails=st.booleans())
    def step(self, units, fails):
        ready = self.buffer.ready()
        if ready is None:
            return
        before = self.buffer.state()
        chunk, items = self.buffer.take(ready, units)
        values = [] if items is None else items.tolist()
        assert values == list(range(chunk.start, chunk.seen)), "context and look-ahead are the neighbouring items"
        if fails:
            self.buffer.restore(before)
            assert self.buffer.ready() == ready
            return
        self.buffer.drop()
        self.seen += values[chunk.fresh - chunk.start : chunk.stop - chunk.start]
        self.finals += chunk.final

    @invariant()
    def every_item_is_new_once_and_in_order(self):
        if hasattr(self, "buffer"):
            assert self.seen == list(range(len(self.seen)))
            assert self.buffer.backlog == self.written - len(self.seen)
            assert self.finals <= self.ended

    def teardown(self):
        if not hasattr(self, "buffer"):
            return
        if not self.ended:
            self.end()
        while self.buffer.ready() is not None:
            self.step(None, False)
        assert (len(self.seen), self.finals) == (self.written, 1)
        assert not self.buffer.parts


KEYS = ("prefill", "decode", "window")


class SchedulerMachine(RuleBasedStateMachine):
    """Rows of three nodes come and are run; some are played live and may be held."""

    limits = Rules(fairness_steps=3)

    def __init__(self):
        super().__init__()
        self.groups = {key: group([], FakeNode(rows=4, budget=32)) for key in KEYS}
        self.now, self.joined, self.served = 0.0, 0, 0

    @rule(key=st.sampled_from(KEYS), units=st.integers(1, 50), whole=st.booleans(), live=st.booleans())
    def join(self, key, units, whole, live):
        offer = Offer((key,), units, units if whole else 1)
        first = self.now if live else None
        self.groups[key].seats.append(seat(offer, self.now, live, first))
        self.joined += 1

    @rule(seconds=st.floats(0, 0.2), live=st.integers(0, 6))
    def wait(self, seconds, live):
        self.now += seconds
        for one in self.groups.values():
            one.node.live = live

    @rule()
    def run(self):
        waiting = [one for one in self.groups.values() if one.seats]
        choice = plan(waiting, self.now, self.limits)
        if not waiting:
            assert choice is None
        elif isinstance(choice, Hold):
            assert choice.until > self.now
            assert all(one.seats[0].piece.request.clocked and len(one.seats) < one.node.live for one in waiting)
        else:
            self.check(choice)
            self.take(choice, waiting)

    def check(self, choice: Plan):
        queue, units = list(choice.group.seats), choice.units
        assert choice.seats == queue[: len(choice.seats)], "the front of the queue, in order"
        assert 0 < len(choice.seats) <= 4
        assert sum(units) <= 32 or len(units) == 1
        offers = [one.offer for one in choice.seats]
        assert all(took == offer.units for took, offer in zip(units[:-1], offers[:-1], strict=True))
        assert offers[-1].least <= units[-1] <= offers[-1].units

    def take(self, choice: Plan, waiting):
        for one in waiting:
            one.passed = 0 if one is choice.group else one.passed + 1
            assert one.passed <= self.limits.fairness_steps + len(KEYS)
        for one, took in zip(choice.seats, choice.units, strict=True):
            choice.group.seats.popleft()
            left = one.offer.units - took
            if left:
                one.offer = Offer(one.offer.key, left, 1)
                choice.group.seats.appendleft(one)
            else:
                self.served += 1

    def teardown(self):
        for _ in range(50 * self.joined):
            self.now += 0.3
            self.run()
        assert self.served == self.joined


@pytest.mark.parametrize("machine", [StreamMachine, SchedulerMachine])
def test_machine(machine):
    run_state_machine_as_test(machine, settings=BUDGET)


def lost_coalesced_chunk(patch):
    write = StreamBuffer.write
    patch.setattr(StreamBuffer, "write", lambda self, values, n: write(self, values, 0 if self.backlog else n))


def missed_final_chunk(patch):
    policy_next = StreamBuffer.ready
    patch.setattr(StreamBuffer, "ready", lambda self: None if self.ended and not self.backlog else policy_next(self))


def failed_step_keeps_its_chunk(patch):
    patch.setattr(StreamBuffer, "restore", lambda self, state: None)


def context_dropped_too_early(patch):
    patch.setattr(StreamBuffer, "drop", lambda self: self.parts.clear())


def row_left_out(patch):
    choose = scheduler.choose

    def skip(group):
        seats, units = choose(group)
        return (seats[1:], units[1:]) if len(seats) > 1 else (seats, units)

    patch.setattr(scheduler, "choose", skip)


STREAM = (lost_coalesced_chunk, missed_final_chunk, failed_step_keeps_its_chunk, context_dropped_too_early)
HUNT = settings(BUDGET, database=None, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False)


@pytest.mark.parametrize("fault", [*STREAM, row_left_out])
def test_a_machine_finds(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, ValueError, IndexError)):
        run_state_machine_as_test(StreamMachine if fault in STREAM else SchedulerMachine, settings=HUNT)
