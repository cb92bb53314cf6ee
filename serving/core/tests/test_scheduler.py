"""The scheduler alone, on a simulated clock: deadlines, holding, fairness, splitting, and what a plan costs."""

from collections import deque
from types import SimpleNamespace

import pytest

from serving.core.contract import Node, Offer
from serving.core.runtime import estimate
from serving.core.scheduler import Hold, Plan, Rules, choose, plan

TICK = 0.08


class FakeNode(SimpleNamespace):
    """What the scheduler reads of a node."""

    def __init__(self, rows=64, units=None, budget=float("inf"), cost=None):
        node = Node()
        node.budget = budget
        if cost:
            node.cost = cost
        super().__init__(
            node=node, most_rows=rows, most_units=units, packed=cost is None, ahead=0.0, live=0, cohort=None
        )


def seat(offer=None, arrived=0.0, live=False, first_output=None, played=0.0):
    request = SimpleNamespace(
        arrived=arrived,
        live=live,
        spoken=False,
        first_output=first_output,
        played=played,
        playhead=(first_output or 0.0) + played,
        clocked=live and first_output is not None,
    )
    return SimpleNamespace(offer=offer or Offer(("k",)), done=False, inflight=0, piece=SimpleNamespace(request=request))


def group(seats, node=None):
    return SimpleNamespace(key="k", node=node or FakeNode(), seats=deque(seats), passed=0)


def run_calls(sessions, fixed, per_row, rules, hold, spread=TICK, seconds=4.0):
    """Calls with a frame a tick, `spread` over so many seconds: frames that came too late to be played, and the steps.

    The first three ticks are not counted: how long a step takes has to be seen.
    """
    node = FakeNode()
    node.live = sessions
    calls = [
        SimpleNamespace(
            arrived=i * spread / sessions, live=True, spoken=True, first_output=None, played=0.0, clocked=True
        )
        for i in range(sessions)
    ]
    waiting, now, late, steps = group([], node), 0.0, 0, 0
    pending = sorted((call.arrived + k * TICK, i) for i, call in enumerate(calls) for k in range(int(seconds / TICK)))
    while pending or waiting.seats:
        while pending and pending[0][0] <= now + 1e-9:
            made = SimpleNamespace(
                offer=Offer(("k",)), done=False, inflight=0, piece=SimpleNamespace(request=calls[pending.pop(0)[1]])
            )
            waiting.seats.append(made)
        if not hold:
            node.live = 0
        choice = plan([waiting] if waiting.seats else [], now, rules)
        if not isinstance(choice, Plan):
            next_arrival = pending[0][0] if pending else float("inf")
            now = max(now, min(next_arrival, choice.until if isinstance(choice, Hold) else float("inf"))) + 1e-6
            continue
        now += fixed + per_row * len(choice.seats)
        node.ahead = estimate(node.ahead, fixed + per_row * len(choice.seats))
        steps += 1
        for one in choice.seats:
            waiting.seats.remove(one)
            call = one.piece.request
            call.first_output = now
            late += call.played > 3 * TICK and now > call.arrived + TICK + call.played
            call.played += TICK
    return late, steps


def test_thirty_two_calls_leave_the_device_to_others_because_rows_are_held():
    """Both are in time; without holding, nearly every frame is a step of its own and the device has no rest."""
    rules, step = Rules(target=TICK), {"fixed": 0.002, "per_row": 0.0001}
    late, held = run_calls(32, rules=rules, hold=True, **step)
    late_without, free = run_calls(32, rules=rules, hold=False, **step)
    assert (late, late_without) == (0, 0)
    assert held < 0.1 * free


def test_thirty_two_calls_of_one_clock_fit_their_tick_because_rows_are_held():
    """A step is over half a tick, so a first row that does not wait for the others leaves them no time."""
    rules, step = Rules(target=TICK), {"fixed": 0.55 * TICK, "per_row": 0.001 * TICK, "spread": 0.1 * TICK}
    late, held = run_calls(32, rules=rules, hold=True, **step)
    late_without, _ = run_calls(32, rules=rules, hold=False, **step)
    assert late == 0
    assert late_without > 0.3 * 32 * held


@pytest.mark.parametrize("sessions", [1, 4, 16, 32])
def test_feasible_calls_miss_nothing(sessions):
    late, _ = run_calls(sessions, fixed=0.01, per_row=0.0005, rules=Rules(target=TICK), hold=True)
    assert late == 0


def test_the_least_slack_goes_first():
    soon = group([seat(live=True, first_output=1.0, played=0.1)])
    later = group([seat(live=True, first_output=1.0, played=0.9)])
    assert plan([later, soon], 1.05, Rules()).group is soon


def test_time_to_the_client_counts():
    near, far = group([seat(arrived=1.0)]), group([seat(arrived=1.05)])
    far.node.ahead = 0.1
    assert plan([near, far], 1.1, Rules()).group is far


def test_nobody_is_passed_over_more_than_the_rule_says():
    rules = Rules(fairness_steps=3)
    urgent, patient = group([seat(arrived=0.0)]), group([seat(first_output=1.0)])
    for _ in range(3):
        assert plan([urgent, patient], 2.0, rules).group is urgent
        patient.passed += 1
    assert plan([urgent, patient], 2.0, rules).group is patient


def test_a_budget_cuts_the_last_row_where_it_may_be_cut():
    whole, long = Offer(("k",), 10, 10), Offer(("k",), 100, 1)
    seats, units = choose(group([seat(whole), seat(long)], FakeNode(budget=32)))
    assert (len(seats), units) == (2, [10, 22])


def test_an_atomic_row_that_does_not_fit_waits_for_the_next_step():
    _, units = choose(group([seat(Offer(("k",), 10, 10)), seat(Offer(("k",), 30, 30))], FakeNode(budget=32)))
    assert units == [10]
    _, units = choose(group([seat(Offer(("k",), 90, 90))], FakeNode(budget=32)))
    assert units == [90], "alone it runs, whatever it costs"


def test_padded_cost_is_the_nodes_own():
    node = FakeNode(budget=64, cost=lambda units: float(len(units) * units.max()))
    seats, _ = choose(group([seat(Offer(("k",), n, n)) for n in (10, 10, 30, 10)], node))
    assert len(seats) == 2


def test_lanes_count():
    both = Offer(("k",), 10, 10, lanes=("cond", "uncond"))
    seats, _ = choose(group([seat(both), seat(both)], FakeNode(budget=30)))
    assert len(seats) == 1


def test_a_plan_does_not_read_the_whole_queue():
    class Counting(deque):
        read = 0

        def __iter__(self):
            for item in super().__iter__():
                Counting.read += 1
                yield item

    waiting = group([], FakeNode(rows=8))
    waiting.seats = Counting(seat() for _ in range(5000))
    plan([waiting], 0.0, Rules())
    assert Counting.read <= 8
