"""Holds a load on a server and writes down what happens.

Warm-up and measurement are one uninterrupted load, told apart by time: measuring starts when the last warm-up
request has ended, and the load is held until the last measured request has its answer, so that none of them
ran on a server that was already emptying. A request that fails or times out is a failure, never a latency.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from perf.arrivals import gaps
from perf.client.clock import Clock
from perf.client.http import RequestFailed
from perf.health import Watch
from perf.schema import Failure, Load, Point, Record
from perf.workloads.base import Item

MOST_WARMUP = 5  # times the warm-up that was asked for: a server that never gets steady is measured all the same
STEADY = 0.1  # two halves of the last warm-up requests differ by no more than this share in their median

NO_TIME = "not tried: the time budget was over, or gave its target no answer before"

Send = Callable[[Item, Record], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to send. `timeout`: a request's budget in seconds. Every `cancel_every`-th client leaves."""

    requests: int
    warmup: int = 0
    timeout: float = 120.0
    seconds: float | None = None  # measure no longer than this, however few requests it holds
    seed: int = 0
    trace: Sequence[float] = ()
    cancel_every: int = 0
    cancel_after: float = 0.5
    steady: bool = False  # warm up until the latency holds still, for at most MOST_WARMUP times `warmup`
    limit: float | None = None  # seconds from the first request on; what was answered by then is measured
    hopeless: Callable[[Sequence[Record], float], bool] | None = None  # of the measured ones so far: give up?


@dataclass(slots=True)
class Window:
    """The measured part of a load, as it is found out."""

    warmup: int
    requests: int
    start: float | None = None
    sent_until: float | None = None
    steady: bool = False
    warm: list[float] = field(default_factory=list)  # seconds that each warm-up request took
    sent: int = 0
    ended: int = 0
    seam: float = -1.0  # nothing is sent at this moment: what was sent before it and after it differ in kind
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def sending(self, now: float) -> None:
        if self.start is None and not self.warmup:
            self.start = now
        if self.start is not None and self.sent < self.requests:
            self.sent += 1
            self.sent_until = now
            self.seam = now if self.sent == self.requests else self.seam

    def finished(self, record: Record, now: float) -> None:
        if self.start is None:
            self.warm.append(now - record.sent)
            if self._warmed():
                self.start, self.seam = now + 1e-6, now
        elif self.start <= record.sent <= (self.sent_until or now):
            self.ended += 1
        self._maybe_done()

    def _warmed(self) -> bool:
        n = len(self.warm)
        if n < self.warmup or not self.steady or n >= MOST_WARMUP * self.warmup:
            return n >= self.warmup
        half = max(2, self.warmup)
        if n < 2 * half:
            return False
        before, after = median(self.warm[-2 * half : -half]), median(self.warm[-half:])
        return abs(after - before) <= STEADY * before

    def cut(self, records: Sequence[Record]) -> None:
        """End now: measured are the first requests, in the order of sending, that all have their answers."""
        sent = [
            r for r in records if self.start is not None and self.start <= r.sent <= (self.sent_until or self.start)
        ]
        waiting = min((r.sent for r in sent if r.end is None), default=math.inf)
        if answered := [r.sent for r in sent if r.sent < waiting]:
            self.sent_until = max(answered)
        else:
            self.start = self.sent_until = None
        self.done.set()

    def close(self) -> None:
        """No further request is measured; those that were sent still are."""
        self.requests = self.sent
        self._maybe_done()

    def _maybe_done(self) -> None:
        if self.start is not None and self.ended >= self.requests:
            self.done.set()


class Generator:
    """One point: a load, a plan, a way to send. `stop` from outside ends it early and keeps what is there."""

    def __init__(self, send: Send, items: Iterator[Item], clock: Clock, load: Load, plan: Plan) -> None:
        self._send, self._items, self._clock = send, items, clock
        self._load, self._plan = load, plan
        self._records: list[Record] = []
        self._window = Window(plan.warmup, plan.requests, steady=plan.steady)
        self._timer: asyncio.TimerHandle | None = None
        self._cut = ""

    async def run(self, watch: Watch, stop: asyncio.Event, label: str = "", repeat: int = 0) -> Point:
        """Hold the load until every measured request has ended, or until `stop`. Without any time nothing is sent."""
        if self._plan.limit == 0:
            now = self._clock()
            return Point(label, self._load, repeat, now, now, now, [], cut=NO_TIME, allotted=0.0)
        async with watch:
            limit = self._clock.loop.call_later(self._plan.limit, self._over) if self._plan.limit is not None else None
            driver = asyncio.create_task(self._drive())
            stopped = await self._wait(driver, stop)
            now = self._clock()
            await self._cancel([driver])
            for timer in (self._timer, limit):
                if timer:
                    timer.cancel()
        start = now if self._window.start is None else min(self._window.start, now)
        return Point(
            label=label,
            load=self._load,
            repeat=repeat,
            start=start,
            sent_until=min(max(start, self._window.sent_until or now), now),
            end=now,
            records=self._records,
            samples=watch.samples,
            stalls=watch.stalls,
            partial=stopped,
            cut=self._cut,
            allotted=self._plan.limit,
        )

    async def _wait(self, driver: asyncio.Task[None], stop: asyncio.Event) -> bool:
        """Until done; whether it was cut short. An error in the driver is raised here."""
        done, stopping = (asyncio.create_task(event.wait()) for event in (self._window.done, stop))
        try:
            await asyncio.wait({done, stopping, driver}, return_when=asyncio.FIRST_COMPLETED)
            if driver.done():
                driver.result()
            return stopping.done() and not self._window.done.is_set()
        finally:
            await self._cancel([done, stopping])

    @staticmethod
    async def _cancel(tasks: Sequence[asyncio.Task[object]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _drive(self) -> None:
        async with asyncio.TaskGroup() as group:
            if self._load.kind == "closed":
                for _ in range(int(self._load.level)):
                    group.create_task(self._worker())
            else:
                await self._open(group)

    async def _worker(self) -> None:
        while True:
            await self._one(self._clock())

    async def _open(self, group: asyncio.TaskGroup) -> None:
        due = self._clock()
        for gap in gaps(self._load, self._plan.seed, self._plan.trace):
            due += gap
            await asyncio.sleep(max(0.0, due - self._clock()))
            group.create_task(self._one(due))

    async def _one(self, due: float) -> None:
        while (now := self._clock()) <= self._window.seam:
            await asyncio.sleep(2e-6)
        item = next(self._items)
        record = Record(item.id, min(due, now), now)
        self._records.append(record)
        self._window.sending(now)
        self._maybe_give_up(now)
        leaves = self._plan.cancel_every and len(self._records) % self._plan.cancel_every == 0
        try:
            await self._attempt(item, record, self._plan.cancel_after if leaves else None)
        finally:
            record.end = max(self._clock(), record.chunks[-1].t if record.chunks else 0.0)
            self._window.finished(record, record.end)
            if self._plan.seconds and self._window.start is not None and self._timer is None:
                self._timer = self._clock.loop.call_later(self._plan.seconds, self._window.close)

    def _maybe_give_up(self, now: float) -> None:
        start = self._window.start
        if self._plan.hopeless is None or start is None:
            return
        sent = [r for r in self._records if start <= r.sent <= (self._window.sent_until or now)]
        if self._plan.hopeless(sent, now):
            self._cut = "the objectives were out of reach"
            self._window.done.set()

    def _over(self) -> None:
        if not self._window.done.is_set():
            self._cut = "its share of the time budget was over"
            self._window.cut(self._records)

    async def _attempt(self, item: Item, record: Record, leave: float | None) -> None:
        limit = self._plan.timeout if leave is None else leave
        try:
            async with asyncio.timeout(limit):
                await self._send(item, record)
            record.outcome = "ok"
        except TimeoutError:
            if leave is None:
                _fail(record, Failure("timeout", f"no complete answer within {limit:g} s"))
            else:
                record.failure = Failure("left", f"the client left after {limit:g} s, as planned")
        except RequestFailed as failed:
            _fail(record, Failure(failed.kind, failed.message, failed.status))
        except asyncio.CancelledError:
            record.failure = Failure("interrupted", "the load ended before the answer")
            raise


def _fail(record: Record, failure: Failure) -> None:
    record.outcome, record.failure = "failed", failure
