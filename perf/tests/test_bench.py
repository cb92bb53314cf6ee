"""The bench as a whole: structure is asserted over real sockets, times in simulated time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from perf.arrivals import closed
from perf.client.routes import Target
from perf.fake_server import FakeServer, Script
from perf.health import idle
from perf.launch import Launch, Running, alone, running
from perf.metrics import evaluate, totals
from perf.schema import Load, Run, read_run
from perf.session import Session, Settings, measure
from perf.tests.virtual import dial_to, simulate
from perf.validity import flags
from perf.workloads import default, from_path, prompts, sentences, tones
from perf.workloads.clips import wav
from serving.errors import BadRequest, SetupError

QUICK = Script(first=0.01, gaps=(0.005, 0.005), size=1200)
FAKE = Launch([sys.executable, "-m", "perf.fake_server", "--port", "0", "--first", "0.05"], model="fake", label="fake")


def simulated(server: FakeServer, route: str = "speech", loads=(closed(2),), **settings) -> Run:
    """A run in simulated time."""

    async def main() -> Run:
        session = Session(default(route), loads, Settings(**settings), dial=dial_to(server))
        return await session.run([Running(Target("http://fake", "fake"))])

    return simulate(main)


def over_sockets(server: FakeServer, route: str, loads=(closed(4),), **settings) -> Run:
    async def main() -> Run:
        async with server.listening() as url:
            session = Session(default(route), loads, Settings(requests=12, **settings))
            return await session.run([Running(Target(url, "fake"))])

    return asyncio.run(main())


@pytest.mark.parametrize("route", ["speech", "transcription", "chat"])
def test_every_route_over_sockets(route):
    point = over_sockets(FakeServer(lambda i: QUICK), route).points[0]
    assert totals.counts(point) == totals.Counts(12, 12, 0, 0)
    assert all(r.digest for r in point.measured)
    if route == "speech":
        assert evaluate(point, route)["audio_s"].value == pytest.approx(0.15)
    else:
        assert all(r.text for r in point.measured)


FAULTS = {3: Script(fault="drop"), 5: Script(status=500), 8: Script(fault="stop"), 11: Script(fault="hang")}


@pytest.mark.parametrize("sockets", [True, False], ids=["over sockets", "in simulated time"])
def test_faults_conserve_requests(sockets: bool):
    """A time-out is looked for in simulated time only: on a busy machine any request could run into one."""
    faults = {i: fault for i, fault in FAULTS.items() if not (sockets and fault.fault == "hang")}
    server = FakeServer(lambda i: faults.get(i, QUICK))
    if sockets:
        point = over_sockets(server, "speech", warmup=0, loads=[closed(1)]).points[0]
    else:
        point = simulated(server, requests=12, warmup=0, timeout=2.0, loads=[closed(1)]).points[0]
    found = {"disconnected": 1, "status 500": 1, "truncated": 1} | ({} if sockets else {"timeout": 1})
    assert totals.failures(point) == found
    assert totals.counts(point) == totals.Counts(12, 12 - len(found), len(found), 0)


def test_run_json_round_trips(tmp_path: Path):
    run = simulated(FakeServer(lambda i: QUICK), requests=5)
    again = read_run(run.save(tmp_path / "run.json"))
    assert again == run
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_run_json_of_another_version_or_with_impossible_times_is_refused(tmp_path: Path):
    run = simulated(FakeServer(lambda i: QUICK), requests=5)
    path = run.save(tmp_path / "run.json")
    for change in ({"version": 99}, {"started": None}):
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
        with pytest.raises(SetupError):
            read_run(path)
    run.points[0].records[0].end = -1.0
    with pytest.raises(SetupError, match="out of order"):
        read_run(run.save(path))


def test_interrupted_runs_keep_what_was_measured_and_resume():
    server = FakeServer(lambda i: Script(first=1.0, gaps=()))

    async def main() -> tuple[Run, Run]:
        session = Session(default("speech"), [closed(1), closed(4)], Settings(requests=8), dial=dial_to(server))
        live = [Running(Target("http://fake", "fake"))]
        task = asyncio.create_task(session.run(live))
        await asyncio.sleep(11.5)
        session._stop.set()
        first = await task
        kept = dataclasses.replace(first, points=list(first.points))
        return kept, await session.run(live, resume=first)

    partial, whole = simulate(main)
    assert partial.partial
    assert [p.partial for p in partial.points] == [False, True]
    counts = totals.counts(partial.points[1])
    assert (counts.ok, counts.dropped) == (1, 4)
    assert "partial" in {f.code for f in flags(partial.points[1], partial.config, 2)}
    assert not whole.partial
    assert [p.load.level for p in whole.points] == [1, 4]
    assert whole.points[0] is partial.points[0]


def test_a_run_that_had_no_time_for_some_loads_goes_on_with_those():
    server = FakeServer(lambda i: Script(first=1.0, gaps=()), slots=1)

    async def main() -> tuple[list[float], Run]:
        live = [Running(Target("http://fake", "fake"))]
        short, long = (
            Session(default("speech"), [closed(1), closed(4)], Settings(budget=b), dial=dial_to(server))
            for b in (7, 90)
        )
        first = await short.run(live)
        return [len(p.measured) for p in first.points], await long.run(live, resume=first)

    before, whole = simulate(main)
    assert before == [4, 0]
    assert [(p.load.level, len(p.measured)) for p in whole.points] == [(1, 4), (4, 16)]


def test_a_signal_ends_a_real_run_and_leaves_a_readable_run_json(tmp_path: Path):
    code = (
        "import sys, pathlib; from perf.session import *; from perf.tests.test_bench import *;"
        "out = pathlib.Path(sys.argv[1]);"
        "measure([FAKE], sentences(), [closed(1)], Settings(requests=100000), out=out, say=print)"
    )
    child = subprocess.Popen([sys.executable, "-uc", code, tmp_path], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert "c=1" in child.stdout.readline()
    time.sleep(1.0)
    child.send_signal(signal.SIGINT)
    assert child.wait(30) == 0
    run = read_run(tmp_path / "run.json")
    assert run.partial
    assert run.points[0].partial
    assert totals.counts(run.points[0]).ok > 0


def test_verify_compares_answers_of_the_measured_run():
    run = simulated(FakeServer(lambda i: QUICK), requests=8, verify=4)
    assert [c.passed for c in run.points[0].checks] == [True] * 4
    for route, method in (("speech", "snr"), ("chat", "wer"), ("transcription", "wer")):
        spoilt = FakeServer(lambda i: dataclasses.replace(QUICK, spoil=i))
        run = simulated(spoilt, route, requests=16, verify=4)
        point = run.points[0]
        assert {(c.method, c.passed) for c in point.checks} == {(method, False)}
        assert "wrong_answers" in [f.code for f in flags(point, run.config, 2)]


def test_targets_take_turns():
    async def main() -> Run:
        session = Session(
            default("chat"), [closed(1), closed(2)], Settings(requests=2, repeats=2),
            dial=dial_to(FakeServer(lambda i: QUICK)),
        )  # fmt: skip
        return await session.run([Running(Target("http://a", "m", "a")), Running(Target("http://b", "m", "b"))])

    points = simulate(main).points
    assert "".join(p.label for p in points) == "abbaabba"
    assert [(p.repeat, p.load.level) for p in points[::2]] == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_launched_servers_are_awaited_and_stopped(tmp_path: Path):
    with running(FAKE, tmp_path) as live:
        assert live.pid is not None
        run = asyncio.run(Session(prompts(), [closed(2)], Settings(requests=4)).run([live]))
        assert run.points[0].samples[-1].server is not None
        assert run.servers["fake"]["model"]["capabilities"]["sample_rate"] == 24_000
        os.kill(live.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(live.pid, 0)


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path):
    bad = Launch([sys.executable, "-c", "print('no weights here'); raise SystemExit(3)"], "x", "bad")
    with pytest.raises(SetupError, match=r"status 3(.|\n)*no weights here"), running(bad, tmp_path):
        raise AssertionError("it started")


def test_nothing_starts_for_an_unknown_route_or_objective(tmp_path: Path):
    for route, slos in (("speach", {}), ("speech", {"ttfaa": 1.0})):
        with pytest.raises(BadRequest, match="Did you mean"):
            measure(
                [FAKE], dataclasses.replace(sentences(), route=route), [closed(1)], Settings(slos=slos), out=tmp_path
            )
    assert not list(tmp_path.iterdir())


def test_clients_that_leave_are_dropped_not_lost():
    server = FakeServer(lambda i: Script(first=1.0, gaps=()))
    point = simulated(server, requests=9, warmup=0, cancel_every=3).points[0]
    assert totals.counts(point) == totals.Counts(9, 6, 0, 3)
    assert totals.failures(point) == {"left": 3}


def test_a_time_limit_measures_fewer_requests():
    point = simulated(FakeServer(lambda i: Script(first=1.0, gaps=())), requests=1000, seconds=5.0).points[0]
    assert not point.partial
    assert 8 <= len(point.measured) <= 12
    assert all(r.outcome == "ok" for r in point.measured)


def test_a_run_made_otherwise_is_not_resumed():
    before = simulated(FakeServer(lambda i: QUICK), requests=4, steady=True)
    assert before.config.steady
    server = dial_to(FakeServer(lambda i: QUICK))

    async def main(**settings) -> None:
        session = Session(
            default("speech"), [closed(2)], Settings(**{"requests": 4, "steady": True, **settings}), dial=server
        )
        await session.run([Running(Target("http://fake", "fake"))], resume=before)

    for settings in ({"steady": False}, {"seed": 1}, {"requests": 5}):
        with pytest.raises(BadRequest, match=f"made with {next(iter(settings))}"):
            simulate(lambda settings=settings: main(**settings))
    simulate(main)


def warmed(first, warmup: int, **settings) -> int:
    """Requests that ended before measuring began."""
    server = FakeServer(lambda i: Script(first=first(i), gaps=()))
    run = simulated(server, loads=[closed(1)], requests=3, warmup=warmup, **settings)
    point = run.points[0]
    assert len(point.measured) == 3
    return sum(r.end <= point.start for r in point.records)


def test_warm_up_lasts_until_latency_holds_still_within_limits():
    slow_start = lambda i: 2.0 if i < 6 else 0.2  # noqa: E731
    assert warmed(slow_start, 4) == 4
    assert 6 < warmed(slow_start, 4, steady=True) < 20
    assert warmed(lambda i: 1.0, 4, steady=True) == 8
    assert warmed(lambda i: 0.5 * 1.2**i, 4, steady=True) == 20  # never steady: the cap
    assert warmed(lambda i: 1.0, 0, steady=True) == 0


@pytest.mark.parametrize("kind", ["constant", "poisson", "ramp", "burst", "trace"])
def test_open_loads_offer_what_they_say(kind):
    trace = tuple(i * 0.5 for i in range(41))
    run = simulated(FakeServer(lambda i: QUICK), loads=[Load(kind, 4)], requests=33, warmup=4, trace=trace, seed=3)
    sent = [r.scheduled for r in run.points[0].records]
    again = simulated(FakeServer(lambda i: QUICK), loads=[Load(kind, 4)], requests=33, warmup=4, trace=trace, seed=3)
    assert sent == [r.scheduled for r in again.points[0].records]
    rate = (len(sent) - 1) / (sent[-1] - sent[0])
    expected = {"constant": 4.0, "poisson": 4.0, "burst": 4.0, "trace": 8.0}
    if kind == "ramp":
        gaps = [b - a for a, b in pairwise(sent)]
        assert gaps[0] == pytest.approx(2.5)
        assert all(a >= b - 1e-5 for a, b in pairwise(gaps))
    else:
        assert rate == pytest.approx(expected[kind], rel=0.35 if kind == "poisson" else 0.15)


def test_workloads_are_seeded_and_distinct(tmp_path: Path):
    for make in (sentences, prompts, tones):
        first, second, other = make(8, seed=1), make(8, seed=1), make(8, seed=2)
        assert first == second
        assert first != other
        assert len({(i.text, i.audio) for i in first.items}) == 8
        taken = [next(item).id for item in [first.stream()] for _ in range(8)]
        assert sorted(taken) == sorted(i.id for i in first.items)
    assert {len(i.text.split()) for i in prompts(8, words=30).items} == {30}


def test_own_files(tmp_path: Path):
    (tmp_path / "hello.wav").write_bytes(wav(np.zeros(800), 16_000))
    (tmp_path / "hello.txt").write_text("hello there\n")
    (item,) = from_path(tmp_path, "transcription").items
    assert (item.text, item.seconds) == ("hello there", 0.05)
    lines = tmp_path / "own.jsonl"
    lines.write_text('{"text": "one", "body": {"speed": 1.5}}\n\n{"id": "b", "audio": "hello.wav"}\n')
    one, two = from_path(lines, "speech").items
    assert (one.id, one.body["speed"], two.id, two.seconds) == ("line-1", 1.5, "b", 0.05)
    lines.write_text('{"text": "one"}\n{"txt": "two"}\n')
    with pytest.raises(SetupError, match="line 2"):
        from_path(lines, "speech")


BUSY = "import time; end = time.time() + 1.5\nwhile time.time() < end: pass\ntime.sleep(30)"


def test_only_the_server_that_is_measured_runs():
    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], start_new_session=True)

    with start() as a, start() as b:
        one, other = (Running(Target("http://x", "m", str(p.pid)), p.pid) for p in (a, b))
        with contextlib.suppress(KeyError), alone(one, [one, other, Running(Target("http://y", "m", "y"))]):
            time.sleep(0.1)
            during = state(a.pid), state(b.pid)
            raise KeyError
        assert during == ("R", "T")
        time.sleep(0.1)
        assert state(b.pid) == "R"
        a.kill()
        b.kill()


def test_a_server_that_still_works_is_waited_for():
    with subprocess.Popen([sys.executable, "-S", "-c", BUSY]) as process:
        began = time.monotonic()
        assert not asyncio.run(idle(process.pid, patience=0.3))
        assert asyncio.run(idle(process.pid))
        assert time.monotonic() - began >= 1.4
        process.kill()
