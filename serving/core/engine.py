"""The engine: one thread that admits, plans, launches, settles and hands over; it computes nothing itself.

A pass of the loop takes every message that has come (submissions, finished steps, cancellations), then launches
what can be launched, then makes one call to each client loop. While a step runs on its lane the next is planned.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from queue import Empty, SimpleQueue
from time import monotonic, thread_time
from typing import Any, NamedTuple, TypeVar

import torch

from serving import numerics
from serving.core import memory
from serving.core.contract import LoadedModel, Packed, Task
from serving.core.handoff import Handle, Outbox, call
from serving.core.lanes import Lane
from serving.core.lifecycle import Requests
from serving.core.request import Request, advance
from serving.core.routing import Router
from serving.core.runtime import Group, ModelRun, useful
from serving.core.scheduler import Hold, Rules, plan
from serving.core.settling import Settler
from serving.core.step import Step, warm
from serving.errors import EngineDead, NotFound, Overloaded, SetupError, ToolkitError, nearest

T = TypeVar("T")
log = logging.getLogger("toolkit.engine")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What a deployment sets of the engine."""

    queue: int = 256  # requests that may wait; one more is refused at once
    lanes: int | None = 1  # steps that run at once; None: as many as cores, where steps can
    threads: int | None = None  # torch threads of a step; None: the busy lanes share those that torch has
    host_workers: int = 2
    queue_timeout: float = 120.0
    idle_input_timeout: float = 60.0
    session_ttl: float = 300.0
    memory: int | None = None  # bytes that the models together may hold
    rules: Rules = field(default_factory=Rules)


class Trace(NamedTuple):
    """What ran: for profiles and metrics. Times in seconds."""

    model: str
    node: str
    rows: int
    size: int
    units: int
    began: float
    seconds: float


class Engine:
    """Serves loaded models. `start` and `stop` from an event loop; `submit` from any."""

    def __init__(
        self,
        loaded: Sequence[LoadedModel],
        settings: EngineSettings | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.settings = settings or EngineSettings()
        self.models = {one.card.key: ModelRun(one) for one in loaded}
        self.state = "starting"
        self.reason: str | None = None
        self.traces: deque[Trace] = deque(maxlen=4096)
        self._clock = clock
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._outbox = Outbox()
        self._router = Router(self._outbox, clock)
        self._pool = ThreadPoolExecutor(self.settings.host_workers, thread_name_prefix="host")
        self._lanes: list[Lane] = []
        self._threads = torch.get_num_threads()
        self._requests = Requests(self)
        self._settler = Settler(self._router, self._requests, self.die)
        self._hold: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # Called from event loops.

    async def start(self) -> None:
        """Prove the numerics, run every bucket once, start the threads; ready when this returns."""
        lanes = self.settings.lanes or useful(self.models.values(), self._threads)
        self._lanes = [Lane(f"lane-{i}") for i in range(lanes)]
        try:
            await asyncio.wrap_future(self._lanes[0].call(self._prepare, self.settings.threads))
        except ToolkitError as error:
            self.state, self.reason = "dead", error.message
            raise
        self._thread.start()
        await self.ask(lambda: None)
        self.state = "ready"

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """Refuse new requests, let running ones finish for so long, then cancel them and stop."""
        if self.state in ("starting", "dead") and not self._thread.is_alive():
            self.state = "dead"
            return
        if self.state == "ready":
            self.state = "draining"
        deadline = self._clock() + drain_seconds
        while len(self._requests) and self._clock() < deadline and self._thread.is_alive():
            await asyncio.sleep(0.02)
        if self._thread.is_alive():
            self._inbox.put(_shut)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        for one in self.models.values():
            one.loaded.close()

    async def submit(
        self,
        key: str,
        task: Task,
        *,
        request_id: str,
        seed: int | None = None,
        session: str | None = None,
        live: bool = False,
        priority: int = 0,
    ) -> Handle:
        """Prepare the task in a host pool and enter it. Raises what the caller should see: 4xx, overload, death.

        `live` says that the client plays the output as it comes, so that its chunks have due times. A higher
        `priority` is admitted first and preempted last.
        """
        model = self._admissible(key, request_id)
        loop = asyncio.get_running_loop()
        port = model.loaded.model
        handle = Handle(self, request_id, port, self._pool, paced=model.paced)
        if seed is None:
            seed = zlib.crc32(request_id.encode())
        self._requests.expect(request_id)
        try:
            job = await loop.run_in_executor(self._pool, port.prepare, replace(task, seed=seed, live=live))
            request = Request(request_id, model, job, seed, handle, self._clock(), session, priority, live)
            request.in_flight = port.in_flight(job)
            request.steps = port.pieces(job)
            first = await loop.run_in_executor(self._pool, advance, request, None)
            await self.ask(lambda: self._requests.enter(request, first))
        except asyncio.CancelledError:
            self.cancel(request_id)
            raise
        finally:
            self._requests.forget(request_id)
        return handle

    def cancel(self, request_id: str) -> None:
        self._inbox.put(lambda: self._requests.cancel(request_id))

    def consumed(self, request_id: str, count: int) -> None:
        """The client has taken so many items."""
        self._inbox.put(lambda: self._requests.consumed(request_id, count))

    def preempt(self, request_id: str) -> int:
        """On the engine thread: let a request leave the device until it is admitted again; how many pieces do."""
        return self._requests.preempt(request_id)

    def append(self, request_id: str, name: str, items: Packed | None) -> None:
        """On the engine thread: add to a client stream, or close it (None)."""
        self._requests.append(request_id, name, items)

    async def ask(self, question: Callable[[], T]) -> T:
        """Run a question on the engine thread; its answer or its exception comes back."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                value = question()
            except Exception as error:
                call(loop, _fail, answer, error)
            else:
                call(loop, _answer, answer, value)

        if self.state == "dead":
            raise EngineDead(f"The engine has stopped: {self.reason}")
        self._inbox.put(run)
        return await answer

    def stats(self) -> dict[str, Any]:
        """Counts at this moment, for metrics and tests."""
        return {
            "state": self.state,
            "requests": len(self._requests),
            "waiting": {key: len(model.waiting) for key, model in self.models.items()},
            "free_slots": {key: len(model.free) for key, model in self.models.items()},
            "prompt_tokens": {key: model.reuse.asked for key, model in self.models.items()},
            "reused_tokens": {key: model.reuse.reused for key, model in self.models.items()},
            "preemptions": {key: self._requests.pressure[key].preemptions for key in self.models},
            "sessions": {key: len(model.sessions) for key, model in self.models.items()},
            "steps": {f"{m.key}.{n.name}": n.steps for m in self.models.values() for n in m.nodes.values()},
            "misses": {f"{m.key}.{n.name}": n.runner.misses for m in self.models.values() for n in m.nodes.values()},
            "compiled": {
                f"{m.key}.{n.name}": n.runner.compilations()
                for m in self.models.values()
                for n in m.nodes.values()
                if n.runner.compiled
            },
        }

    def _prepare(self) -> None:
        """On a lane, whose threads it proves the numerics for."""
        for model in self.models.values():
            options, modules = model.loaded.options, model.loaded.model.modules
            numerics.prepare(modules, options.numerics, options.device)
            numerics.probe(modules, options.numerics)
            for node in model.nodes.values():
                warm(node)
        memory.check(self.models.values(), self.settings.memory)

    def _admissible(self, key: str, request_id: str) -> ModelRun:
        if key not in self.models:
            raise NotFound(f'No model "{key}" is loaded.{nearest(key, self.models)}', param="model")
        if self.state == "dead":
            raise EngineDead(f"The engine has stopped: {self.reason}")
        if self.state != "ready":
            raise Overloaded(f"The server is {self.state}.")
        if self._requests.known(request_id):
            raise SetupError(f"The request id {request_id} is in use.")
        if self._requests.waiting() >= self.settings.queue:
            raise Overloaded(f"{self.settings.queue} requests are waiting already.")
        return self.models[key]

    # On the engine thread.

    @staticmethod
    def thread_seconds() -> float:
        """CPU time of the engine thread, when called on it."""
        return thread_time()

    def work(self, job: Callable[[], Callable[[], None]]) -> None:
        """Run a job in a host pool; what it returns is run on the engine thread."""
        self._pool.submit(lambda: self._inbox.put(job()))

    def die(self, reason: str) -> None:
        """No step can run any more: fail everything and stop being ready."""
        self.state, self.reason = "dead", reason
        self._requests.fail_all(EngineDead(f"The engine has stopped: {reason}"))

    def _run(self) -> None:
        try:
            while self._pass():
                pass
        except Exception:
            self.die(traceback.format_exc(limit=3))
        finally:
            if self.state != "dead":
                self.die("it was stopped")
            self._outbox.flush()
            for lane in self._lanes:
                lane.close()
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._take_back()

    def _take_back(self) -> None:
        """Settle the steps that were in flight, so that what they held is released."""
        while not self._inbox.empty():
            try:
                self._inbox.get_nowait()()
            except Exception:
                log.exception("while stopping")
        self._outbox.flush()

    def _pass(self) -> bool:
        """One turn; False when it is time to stop."""
        if not self._drain():
            return False
        self._requests.expire(self._clock())
        self._wake()
        self._pump()
        self._outbox.flush()
        return self.state != "dead"

    def _drain(self) -> bool:
        """Run every message; wait for one when there is nothing else to do."""
        now = self._clock()
        until = min(self._hold or float("inf"), self._requests.alarm())
        try:
            message = self._inbox.get(timeout=max(0.0, min(until - now, 60.0)))
            while message is not _shut:
                message()
                message = self._inbox.get_nowait()
        except Empty:
            return True
        return False

    def _wake(self) -> None:
        """Ask seats whose streams changed; queue those that had waited for room."""
        while self._router.woken or self._router.freed:
            woken, self._router.woken = self._router.woken, []
            freed, self._router.freed = self._router.freed, []
            for seat in woken:
                self._settler.ask(seat)
            for seat in freed:
                self._settler.unblock(seat)

    def _pump(self) -> None:
        """Launch until the lanes are full or nothing is ready."""
        self._requests.admit(self._clock())
        self._wake()
        self._hold = None
        while lane := self._free_lane():
            groups = [group for group in self._groups() if self._may_run(group.node, lane)]
            choice = plan(groups, self._clock(), self.settings.rules)
            if isinstance(choice, Hold):
                self._hold = choice.until
            if choice is None or isinstance(choice, Hold):
                return
            choice = self._requests.fit(choice)
            if choice is None:
                continue
            for group in groups:
                group.passed += 1
            step = self._settler.launch(choice)
            if step is not None:
                self._send(step, lane, groups)
            self._wake()

    def _groups(self) -> list[Group]:
        nodes = chain.from_iterable(model.nodes.values() for model in self.models.values())
        return [group for node in nodes if node.groups for group in node.fresh()]

    def _free_lane(self) -> Lane | None:
        lane = min(self._lanes, key=lambda one: one.depth)
        return lane if lane.depth < self.settings.rules.depth else None

    def _may_run(self, node: Any, lane: Lane) -> bool:
        """Steps that are not apart keep their order: they share a lane."""
        if len(node.inflight) >= max(self.settings.rules.depth, len(self._lanes)):
            return False
        return all(other is lane or node.apart(step) for other in self._lanes for step in other.steps)

    def _send(self, step: Step, lane: Lane, groups: list[Group]) -> None:
        """Run it on the lane; those of the groups that are apart from it may run beside it."""
        step.lane = lane
        lane.depth += 1
        lane.steps.append(step)
        threads = self.settings.threads
        if threads is None and len(self._lanes) > 1:
            threads = self._share(sum(bool(group.seats) and group.node.apart(step) for group in groups))
        lane.submit(lambda: step.run(self._done), threads)

    def _share(self, ready: int) -> int:
        """Torch threads of a step that is launched now, while so many others could run beside it."""
        busy = min(len(self._lanes), sum(lane.depth > 0 for lane in self._lanes) + ready)
        return max(1, self._threads // busy)

    def _done(self, step: Step) -> None:
        """On the lane: the step has run."""
        self._inbox.put(lambda: self._settle(step))

    def _settle(self, step: Step) -> None:
        step.lane.depth -= 1
        step.lane.steps.remove(step)
        b, seconds = step.batch, step.ended - step.began
        self.traces.append(Trace(step.node.model.key, step.node.name, b.n, b.size, b.total, step.began, seconds))
        self._settler.settle(step, seconds)
        self._requests.reap()


def _shut() -> None:
    """The message that stops the loop."""


def _answer(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
