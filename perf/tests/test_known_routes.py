"""Pictures, films, actions, live sessions and mixed loads on the scripted server: every figure by arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from perf.arrivals import closed
from perf.client.routes import Target
from perf.fake_server import FakeServer, Script
from perf.launch import Running
from perf.metrics import live, totals
from perf.metrics.base import content
from perf.schema import Load, Run, Sent
from perf.session import Session, Settings
from perf.tests.test_known_answers import near, value
from perf.tests.virtual import dial_to, simulate
from perf.validity import flags
from perf.workloads import chosen, default, named
from perf.workloads.base import Workload
from serving.errors import BadRequest


def run(route: str, script, load: Load | None = None, workload: Workload | None = None, **settings) -> Run:
    """A run of one point in simulated time."""

    async def main() -> Run:
        work, plan = workload or default(route), Settings(**{"requests": 4, "warmup": 0, **settings})
        session = Session(work, [load or closed(1)], plan, dial=dial_to(FakeServer(script)))
        return await session.run([Running(Target("http://fake", "fake"))])

    return simulate(main)


def point(route: str, script: Script, *arguments, **settings):
    (found,) = run(route, lambda i: script, *arguments, **settings).points
    return found


@pytest.mark.parametrize(("route", "metric"), [("image", "picture_throughput"), ("video", "film_throughput")])
def test_pictures_and_films(route, metric):
    made = point(route, Script(first=0.6, gaps=(0.2, 0.2)))  # three in one answer
    assert [(r.outcome, r.made) for r in made.measured] == [("ok", 3)] * 4
    assert value(made, route, "e2e") == near(1.0)
    assert value(made, route, metric) == near(3.0)
    ill = point(route, Script(fault="error"))
    assert totals.failures(ill) == {"malformed": 4}
    assert value(ill, route, metric) is None


def test_actions():
    script = Script(first=0.2, gaps=(0.1, 0.1), size=8, header=0.05)  # facts of the run come 0.05 s before an output
    made = point("generate", script)
    assert value(made, "generate", "ttfo") == near(0.2)
    assert value(made, "generate", "icl") == near(0.1)
    assert value(made, "generate", "output_throughput") == near(24 / 0.4)
    faults = point("generate", Script(fault="error")), point("generate", Script(fault="stop"))
    assert [totals.failures(p) for p in faults] == [{"in_band": 4}, {"truncated": 4}]


def test_an_open_loop_of_actions_keeps_its_rate():
    made = point("generate", Script(first=2.0, gaps=()), Load("constant", 10), requests=20)
    assert value(made, "generate", "offered") == near(10.0)
    assert value(made, "generate", "achieved") == near(10.0)


LIVE = Script(first=0.03, gaps=(0.02,), size=5)  # every append is answered after 0.03 s


def test_live_sessions_append_at_their_own_pace_and_are_late_by_the_server_s_time():
    made = point("live", LIVE)
    pieces = 50  # of 0.08 s: four seconds of input
    for record in made.measured:
        assert len(record.sends) == pieces + 1
        assert len(content(record)) == pieces
        assert record.made == 5 * pieces
        dues = [s.due for s in record.sends]
        assert dues[1] - dues[0] == near(0.08)
        assert max(s.t - s.due for s in record.sends) < 1e-4
    assert value(made, "live", "lag") == near(0.03)
    assert value(made, "live", "final") == near(0.05)
    assert value(made, "live", "output_throughput") == pytest.approx(250 / 4.05, rel=1e-4)


def test_a_server_that_falls_behind_is_not_waited_for():
    slow = Script(first=1.0, gaps=(0.0,), size=1)
    made = point("live", slow)
    assert value(made, "live", "lag") == near(1.0)
    sent = made.measured[0].sends
    assert sent[-1].t - sent[0].t == near(49 * 0.08)  # the appends did not slow down


@pytest.mark.parametrize(("fault", "reason"), [("error", "in_band"), ("drop", "disconnected"), ("hang", "timeout")])
@pytest.mark.parametrize("route", ["live", "realtime"])
def test_live_failures(route, fault, reason):
    made = point(route, Script(first=0.1, gaps=(0.1, 0.1), fault=fault), timeout=30.0)
    assert totals.failures(made) == {reason: 4}
    assert totals.counts(made).ok == 0


def test_realtime_counts_from_the_end_of_speech():
    made = point("realtime", Script(first=0.3, gaps=(0.1, 0.1)))
    assert value(made, "realtime", "first_after") == near(0.3)
    assert value(made, "realtime", "final") == near(0.5)
    record = made.measured[0]
    assert record.input_seconds == near(sum(s.size for s in record.sends) / 24_000) or record.input_seconds
    assert record.reference
    assert len((record.text or "").split()) == 3


class FromTheSocket(live.Lag):
    """Counts from when a piece was sent, however late that was: what coordinated omission looks like."""

    def of(self, record):
        moved = [Sent(s.t, s.t, s.size) for s in record.sends]
        return live.Lag().of(type("R", (), {"sends": moved, "chunks": record.chunks})())


def test_planted_fault_in_the_lag_is_seen():
    made = point("live", LIVE)
    for record in made.measured:  # a client that sent everything half a second late, and was answered as late
        record.sends = [Sent(s.due, s.t + 0.5, s.size) for s in record.sends]
        record.chunks = [c._replace(t=c.t + 0.5) for c in record.chunks]
    assert live.Lag().result(made).value == near(0.53)
    assert FromTheSocket().result(made).value == near(0.03)
    assert "generator_lag" in {f.code for f in flags(made, run("live", lambda i: LIVE).config, 2)}


def test_mixed_parts_are_sent_by_weight_and_told_apart():
    work = named("3*sentences:n=8+long-texts:n=4")
    made = point("speech", Script(first=0.1, gaps=()), requests=400, workload=work)
    sent = [r.part for r in made.measured]
    assert {*sent} == {"sentences:n=8", "long-texts:n=4"}
    assert sent.count("sentences:n=8") == pytest.approx(300, abs=30)
    assert work.name == "75 % sentences:n=8 + 25 % long-texts:n=4"


def test_cancelled_clients_of_a_live_load_are_dropped_and_leave_the_server():
    server = FakeServer(lambda i: LIVE)

    async def main() -> Run:
        plan = Settings(requests=6, warmup=0, cancel_every=3, cancel_after=1.0)
        session = Session(default("live"), [closed(2)], plan, dial=dial_to(server))
        return await session.run([Running(Target("http://fake", "fake"))])

    found = simulate(main)
    assert totals.counts(found.points[0]) == totals.Counts(6, 4, 0, 2)
    assert totals.failures(found.points[0]) == {"left": 2}
    assert found.config.cancel_every == 3
    assert server.in_flight == 0


def test_set_lengths_of_prompts_and_answers():
    work = named("prompts:words=120,max_tokens=7,n=5")
    assert all(len(item.text.split()) == 120 and item.body == {"max_tokens": 7} for item in work.items)
    assert len({item.text for item in work.items}) == 5
    full = Script(first=0.1, gaps=(0.02,) * 6, size=1, usage="running")
    made = point("chat", full, workload=work, body={"ignore_eos": True})
    assert {r.tokens for r in made.measured} == {7}
    assert value(made, "chat", "tpot") == near(0.02)
    assert flags(made, run("chat", lambda i: full).config, 2) == []
    short = run("chat", lambda i: Script(gaps=(), size=1, usage="running"), workload=work, body={"ignore_eos": True})
    assert "short_answers" in {f.code for f in flags(short.points[0], short.config, 2)}


def test_names_of_workloads_are_checked(tmp_path: Path):
    assert chosen("prompts:words=60", "chat").items[0].text.count(" ") == 59
    for text, says in {
        "promts": 'Did you mean "prompts"',
        "prompts:word=3": 'Did you mean "words"',
        "prompts:words=many": "words is int",
        "x*prompts": "A weight is a number",
        "prompts+sentences": "one route",
    }.items():
        with pytest.raises(BadRequest, match=says):
            named(text)
    with pytest.raises(BadRequest, match="is for speech, not for chat"):
        chosen("sentences", "chat")
