"""`measure`: loads on one or more targets, in the same run and turn by turn, into a `Run`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import httpx

from perf.client.clock import Clock
from perf.client.http import Dial
from perf.client.routes import Sender, Target
from perf.fingerprint import machine, redact
from perf.health import Watch
from perf.launch import Launch, Running, running
from perf.loadgen import Generator, Plan
from perf.metrics import for_route
from perf.metrics.goodput import Goodput
from perf.schema import Config, Load, Point, Run
from perf.sweep import OutOfReach, Planner
from perf.verify import choose, verify
from perf.workloads import Workload
from serving.errors import BadRequest

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure a point: `requests` (None: twice the concurrency, at least 16) after `warmup` (None: the
    concurrency; `steady`: more, until the latency holds still), for at most `seconds`. `verify`: how many answers
    to compare with solo runs.
    """

    requests: int | None = None
    warmup: int | None = None
    seconds: float | None = None
    repeats: int = 1
    timeout: float = 120.0
    seed: int = 0
    slos: Mapping[str, float] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    verify: int = 0
    trace: Sequence[float] = ()
    cancel_every: int = 0
    steady: bool = False

    def plan(self, load: Load) -> Plan:
        level = int(load.level) if load.kind == "closed" else 8
        return Plan(
            requests=self.requests or max(16, 2 * level),
            warmup=level if self.warmup is None else self.warmup,
            timeout=self.timeout,
            seconds=self.seconds,
            seed=self.seed,
            trace=self.trace,
            cancel_every=self.cancel_every,
            steady=self.steady,
        )


def measure(
    targets: Sequence[Target | Launch],
    route: str,
    workload: Workload,
    loads: Sequence[Load],
    settings: Settings,
    *,
    out: Path | None = None,
    resume: Run | None = None,
    say: Say = lambda line: None,
    planner: Planner | None = None,
) -> Run:
    """Hold every load on every target, or, with a `planner`, the loads that it asks for.

    Targets take turns within each load and repeat, so that a slow minute of the machine hits them all. With
    `out`, run.json is written there after each point, and the servers' logs. Ctrl-C ends early: the run so far is
    returned, marked partial; `resume` continues one.
    """
    for_route(route, settings.slos)  # an unknown route or objective is an error before anything starts
    if len({t.label for t in targets}) < len(targets) or not targets:
        raise BadRequest("Every target needs a label of its own.", param="target")
    session = Session(route, workload, loads, settings, say, planner=planner)
    with contextlib.ExitStack() as stack:
        logs = (out or Path("runs")) / "logs"
        live = [stack.enter_context(running(t, logs)) for t in targets]
        return asyncio.run(session.run(live, out, resume))


@dataclass
class Session:
    """The loop over repeats, loads and targets. `dial` replaces sockets in simulations."""

    route: str
    workload: Workload
    loads: Sequence[Load]
    settings: Settings
    say: Say = lambda line: None
    dial: Dial | None = None
    planner: Planner | None = None

    async def run(self, targets: Sequence[Running], out: Path | None = None, resume: Run | None = None) -> Run:
        """Measure; see `measure`."""
        self._clock, self._stop = Clock(), asyncio.Event()
        self._senders: dict[str, Sender] = {}
        run = resume or await self._new(targets)
        run.points = [p for p in run.points if not p.partial]
        done = {(p.label, p.load, p.repeat) for p in run.points}
        with self._interruptible():
            for repeat, load, live in self._planned(run, targets) if self.planner else self._order(targets):
                if (live.target.label, load, repeat) in done:
                    continue
                if self._stop.is_set():
                    break
                run.points.append(await self._point(run, live, load, repeat))
                if out:
                    run.save(out / "run.json")
        for sender in self._senders.values():
            sender.close()
        run.partial = self._stop.is_set()
        if out:
            run.save(out / "run.json")
        return run

    def _order(self, targets: Sequence[Running]) -> Iterator[tuple[int, Load, Running]]:
        """Every second turn goes through the targets backwards: nobody is always first."""
        turns = product(range(self.settings.repeats), self.loads)
        for i, (repeat, load) in enumerate(turns):
            for live in targets if i % 2 == 0 else reversed(targets):
                yield repeat, load, live

    def _planned(self, run: Run, targets: Sequence[Running]) -> Iterator[tuple[int, Load, Running]]:
        """What the planner asks for, target by target, as points come in."""
        assert self.planner is not None
        for live in targets:
            while load := self.planner([p for p in run.points if p.label == live.target.label]):
                yield 0, load, live
                if self._stop.is_set():
                    return

    async def _point(self, run: Run, live: Running, load: Load, repeat: int) -> Point:
        self.say(f"{live.target.label}: {load.name}" + (f", repeat {repeat + 1}" if repeat else ""))
        items, sender = list(self.workload.items), self._sender(run, live)
        sender.keep = choose(items, self.settings.verify, self.settings.seed)
        plan = self.settings.plan(load)
        if self.planner and load.kind == "poisson":
            goodput = for_route(self.route, self.settings.slos)["goodput"]
            assert isinstance(goodput, Goodput)
            plan = replace(plan, hopeless=OutOfReach(goodput, plan.requests))
        generator = Generator(sender, self.workload.stream(), self._clock, load, plan)
        point = await generator.run(Watch(self._clock, live.pid), self._stop, live.target.label, repeat)
        if self.settings.verify and not point.partial:
            point.checks = await verify(point, sender, items, self.settings.verify, self._clock)
        sender.outputs.clear()
        return point

    def _sender(self, run: Run, live: Running) -> Sender:
        """One a target, with its requests encoded before the first is measured."""
        target = live.target
        if target.label not in self._senders:
            rate = run.config.declared_rates.get(target.label)
            sender = Sender(
                target, self.route, self._clock, body=self.settings.body, declared_rate=rate, dial=self.dial
            )
            sender.prepare(list(self.workload.items))
            self._senders[target.label] = sender
        return self._senders[target.label]

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C ends the run and keeps it; a second one is Python's own."""
        loop = self._clock.loop

        def end() -> None:
            self.say("Interrupted: keeping what was measured.")
            self._stop.set()
            loop.remove_signal_handler(signal.SIGINT)

        try:
            loop.add_signal_handler(signal.SIGINT, end)
        except (ValueError, NotImplementedError, RuntimeError):
            yield  # not the main thread: whoever owns it decides
            return
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    async def _new(self, targets: Sequence[Running]) -> Run:
        simulated = self.dial is not None
        servers = {t.target.label: {} if simulated else await describe(t.target) for t in targets}
        rates = {label: rate for label, info in servers.items() if (rate := _sample_rate(info))}
        config = Config(
            route=self.route,
            models={live.target.label: live.target.model for live in targets},
            workload=self.workload.name,
            items=len(self.workload.items),
            seed=self.settings.seed,
            requests=self.settings.requests,
            warmup=self.settings.warmup,
            timeout=self.settings.timeout,
            slos=self.settings.slos,
            body=self.settings.body,
            verify=self.settings.verify,
            declared_rates=rates,
        )
        return Run(config, datetime.now(UTC).isoformat(timespec="seconds"), machine(), servers)


async def describe(target: Target) -> dict[str, Any]:
    """What the server says of itself and of the model; {} from one that says nothing."""
    found: dict[str, Any] = {}
    async with httpx.AsyncClient(base_url=target.url, headers=target.headers(), timeout=10.0) as client:
        for name, path in (("server", "/v1/server_info"), ("model", f"/v1/models/{target.model}")):
            with contextlib.suppress(httpx.HTTPError, ValueError):
                answer = await client.get(path)
                if answer.status_code == 200 and isinstance(answer.json(), dict):
                    found[name] = redact(answer.json())
    return found


def _sample_rate(info: Mapping[str, Any]) -> int | None:
    return (info.get("model", {}).get("capabilities") or {}).get("sample_rate")
