"""`measure`: loads on one or more targets, in the same run and turn by turn, into a `Run`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import httpx

from perf.budget import ENDING, WARMUP, Budget, Cell
from perf.client.clock import Clock
from perf.client.http import Dial
from perf.client.routes import Sender, Target
from perf.fingerprint import machine, redact
from perf.health import Watch, idle
from perf.launch import Launch, Running, all_running, alone
from perf.loadgen import Generator, Plan
from perf.metrics import for_run, objectives
from perf.metrics.goodput import Goodput
from perf.schema import Config, Load, Point, Run, Work
from perf.sweep import OutOfReach, Planner
from perf.validity import fit
from perf.verify import choose, verify
from perf.workloads import Workload
from serving.errors import BadRequest

Say = Callable[[str], None]
ENDINGS = (signal.SIGINT, signal.SIGTERM)
Workloads = Workload | Mapping[str, Workload]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure a point: `requests` (None: twice the concurrency, at least 16) after `warmup` (None: the
    concurrency; `steady`: more, until the latency holds still), for at most `seconds`. `verify`: how many answers
    to compare with solo runs. `budget`: seconds for the whole run, starting its servers included; points share it.
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
    cancel_after: float = 0.5
    budget: float | None = None  # seconds for the whole run
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
            cancel_after=self.cancel_after,
            steady=self.steady,
        )


def measure(
    targets: Sequence[Target | Launch],
    workloads: Workloads,
    loads: Sequence[Load],
    settings: Settings,
    *,
    out: Path | None = None,
    resume: Run | None = None,
    say: Say = lambda line: None,
    planner: Callable[[str], Planner] | None = None,
) -> Run:
    """Hold every load on every target, or, with a `planner` for a route, the loads that it asks for.

    `workloads`: one for all targets, or one a label; a workload has the route that it is for.
    Targets take turns within each load and repeat, so that a slow minute of the machine hits them all. With
    `out`, run.json is written there after each point, and the servers' logs. Ctrl-C ends early: the run so far is
    returned, marked partial; `resume` continues one.
    """
    if len({t.label for t in targets}) < len(targets) or not targets:
        raise BadRequest("Every target needs a label of its own.", param="target")
    if planner and settings.budget is not None:
        raise BadRequest("A time budget is split over set loads; a search has none.", param="budget")
    session = Session(workloads, loads, settings, say, planner=planner)
    objectives(settings.slos, [session.workload(t.label).route for t in targets])  # unknown ones before anything starts
    with all_running(targets, (out or Path("runs")) / "logs") as live:
        return asyncio.run(session.run(live, out, resume))


@dataclass
class Session:
    """The loop over repeats, loads and targets. `dial` replaces sockets in simulations."""

    workloads: Workloads
    loads: Sequence[Load]
    settings: Settings
    say: Say = lambda line: None
    dial: Dial | None = None
    planner: Callable[[str], Planner] | None = None
    began: float = field(default_factory=time.monotonic)
    _budget: Budget | None = field(default=None, init=False)

    def workload(self, label: str) -> Workload:
        """What a target is sent."""
        return self.workloads if isinstance(self.workloads, Workload) else self.workloads[label]

    async def run(self, targets: Sequence[Running], out: Path | None = None, resume: Run | None = None) -> Run:
        """Measure; see `measure`."""
        config = self._config(targets, resume)
        run = replace(resume, config=config) if resume else Run(config, _now(), machine(), {})
        run.points = [p for p in run.points if p.measured and not p.partial]  # others are still to be measured
        self._clock, self._stop = Clock(max((p.end for p in run.points), default=0.0)), asyncio.Event()
        self._senders: dict[str, Sender] = {}
        await self._describe(run, targets)
        with self._interruptible():
            for repeat, load, live in self._planned(run, targets) if self.planner else self._set(run, targets):
                if self._stop.is_set():
                    break
                plan = self._plan(run, load, self.workload(live.target.label).route)
                if plan is None:
                    self.say(f"{live.target.label}: {load.name}, repeat {repeat + 1}: no time left")
                    continue
                with alone(live, targets):
                    run.points.append(await self._point(run, live, load, repeat, plan))
                    if live.pid and not await idle(live.pid):
                        self.say(f"{live.target.label} still works for clients that have left.")
                if out:
                    run.save(out / "run.json")
        for sender in self._senders.values():
            sender.close()
        run.partial = self._stop.is_set()
        if out:
            run.save(out / "run.json")
        return run

    def _set(self, run: Run, targets: Sequence[Running]) -> Iterator[tuple[int, Load, Running]]:
        """The loads that were asked for, less those that the run has. Where time is limited they share it, and what is
        left is for points that the machine has spoilt."""
        done = {(p.label, p.load, p.repeat) for p in run.points}
        turns = [turn for turn in self._order(targets) if (turn[2].target.label, turn[1], turn[0]) not in done]
        if self.settings.budget is None:
            yield from turns
            return
        ends = self._clock() + (1 - ENDING) * self.settings.budget - (time.monotonic() - self.began)
        warmup = WARMUP if self.settings.warmup is None else self.settings.warmup
        self._budget = Budget(ends, self._cells(turns), self.settings.verify, warmup)
        yield from turns
        again = self._spoilt(run, targets)
        self._budget.cells += self._cells(again)
        yield from again

    def _cells(self, turns: Sequence[tuple[int, Load, Running]]) -> list[Cell]:
        plan = self.settings.plan
        return [Cell(live.target.label, load, plan(load).requests, not repeat) for repeat, load, live in turns]

    @staticmethod
    def _spoilt(run: Run, targets: Sequence[Running]) -> list[tuple[int, Load, Running]]:
        """Repeats more, one for each point that says more about the machine than about its target."""
        cores, by_label = run.client.get("cores", 1), {live.target.label: live for live in targets}
        repeats = Counter((p.label, p.load) for p in run.points)
        found = []
        for p in run.points:
            if p.label in by_label and not fit(p, run.config, cores):
                found.append((repeats[p.label, p.load], p.load, by_label[p.label]))
                repeats[p.label, p.load] += 1
        return found

    def _plan(self, run: Run, load: Load, route: str) -> Plan | None:
        """How the next point is measured; None where there is no time for it."""
        plan = self.settings.plan(load)
        if self._budget:
            share = self._budget.share(self._clock(), run.points)
            if share is None:
                return None
            return replace(plan, requests=share.requests, warmup=self._budget.warmup, limit=share.seconds)
        if self.planner and load.kind == "poisson":
            goodput = for_run(run.config, route)["goodput"]
            assert isinstance(goodput, Goodput)
            return replace(plan, hopeless=OutOfReach(goodput, plan.requests))
        return plan

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
            planner = self.planner(self.workload(live.target.label).route)
            while load := planner([p for p in run.points if p.label == live.target.label]):
                yield 0, load, live
                if self._stop.is_set():
                    return

    async def _point(self, run: Run, live: Running, load: Load, repeat: int, plan: Plan) -> Point:
        self.say(f"{live.target.label}: {load.name}" + (f", repeat {repeat + 1}" if repeat else ""))
        workload, sender = self.workload(live.target.label), self._sender(run, live)
        items = list(workload.items)
        sender.keep = choose(items, self.settings.verify, self.settings.seed)
        generator = Generator(sender, workload.stream(), self._clock, load, plan)
        point = await generator.run(Watch(self._clock, live.pid), self._stop, live.target.label, repeat)
        if self.settings.verify and not point.partial:
            point.checks = await verify(point, sender, items, self.settings.verify, self._clock)
        sender.outputs.clear()
        return point

    def _sender(self, run: Run, live: Running) -> Sender:
        """One a target, with its requests encoded before the first is measured."""
        target, workload = live.target, self.workload(live.target.label)
        if target.label not in self._senders:
            rate = run.config.declared_rates.get(target.label)
            sender = Sender(
                target, workload.route, self._clock, body=self.settings.body, declared_rate=rate, dial=self.dial
            )
            sender.prepare(list(workload.items))
            self._senders[target.label] = sender
        return self._senders[target.label]

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the run and keeps it, its servers stopped; a second one is Python's own."""
        loop = self._clock.loop

        def end(which: signal.Signals) -> None:
            self.say("Interrupted: keeping what was measured.")
            self._stop.set()
            loop.remove_signal_handler(which)

        try:
            for which in ENDINGS:
                loop.add_signal_handler(which, end, which)
        except (ValueError, NotImplementedError, RuntimeError):
            yield  # not the main thread: whoever owns it decides
            return
        try:
            yield
        finally:
            for which in ENDINGS:
                loop.remove_signal_handler(which)

    def _config(self, targets: Sequence[Running], resume: Run | None) -> Config:
        """What is asked for. Raises `BadRequest` where a run that is resumed was asked for something else."""
        used = {live.target.label: self.workload(live.target.label) for live in targets}
        settings = self.settings
        config = Config(
            models={live.target.label: live.target.model for live in targets},
            routes={label: workload.route for label, workload in used.items()},
            workloads={w.route: Work(w.name, len(w.items)) for w in used.values()},
            seed=settings.seed,
            requests=settings.requests,
            warmup=settings.warmup,
            timeout=settings.timeout,
            steady=settings.steady,
            budget=settings.budget,
            cancel_every=settings.cancel_every,
            cancel_after=settings.cancel_after,
            slos=settings.slos,
            body=settings.body,
            verify=settings.verify,
        )
        return _continued(resume.config, config) if resume else config

    async def _describe(self, run: Run, targets: Sequence[Running]) -> None:
        """Add what the servers say of themselves; simulated ones say nothing."""
        for live in targets if self.dial is None else ():
            label = live.target.label
            run.servers[label] = found = await describe(live.target)
            if rate := _sample_rate(found):
                run.config.declared_rates = {**run.config.declared_rates, label: rate}


def _continued(before: Config, now: Config) -> Config:
    """The configuration of a run that goes on, perhaps with more targets."""
    for name in ("seed", "requests", "warmup", "steady", "timeout", "body"):
        if getattr(before, name) != getattr(now, name):
            was = getattr(before, name)
            raise BadRequest(
                f"Cannot resume: the run was made with {name} {was}, not {getattr(now, name)}.", param=name
            )
    for name in ("models", "routes", "workloads"):
        old, new = getattr(before, name), getattr(now, name)
        if changed := [key for key in old if key in new and new[key] != old[key]]:
            raise BadRequest(f"Cannot resume: the {name} of {changed[0]} have changed.", param=name)
        setattr(now, name, {**old, **new})
    now.declared_rates = before.declared_rates
    return now


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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _sample_rate(info: Mapping[str, Any]) -> int | None:
    return (info.get("model", {}).get("capabilities") or {}).get("sample_rate")
