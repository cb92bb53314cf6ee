"""Where a model's time goes: a workload run in this process, and every step of the engine written down.

Steps run on one lane, in order, so that the time between two of them is idle time, and belongs to the node that
was waited for. What the port does beside the steps, on the engine thread and in the host pools, is timed call by
call.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import soundfile
from pydantic import TypeAdapter

from perf.fingerprint import machine
from perf.workloads import Item, Workload
from serving.core.contract import Audio, LoadedModel, Task
from serving.core.engine import Engine, EngineSettings, Trace
from serving.errors import BadRequest

ROUTES = {"speak": "speech", "transcribe": "transcription", "chat": "chat"}
ON_ENGINE_THREAD = ("begin", "offer", "stage", "settle")
IN_POOLS = ("prepare", "present")


@dataclass(frozen=True, slots=True)
class Profile:
    """A profiled run. Times in seconds; a step's `began` is on the clock on which `start` and `end` are."""

    key: str
    task: str
    workload: str
    options: dict[str, Any]
    concurrency: int
    requests: int
    started: str  # ISO 8601, UTC
    client: dict[str, Any]
    start: float
    end: float
    steps: list[Trace]
    engine_cpu: float  # CPU time of the engine thread
    process_cpu: float  # of all threads
    host: dict[str, dict[str, float]] = field(default_factory=dict)  # node -> call -> seconds on the engine thread
    pools: dict[str, float] = field(default_factory=dict)  # call -> seconds in host pools

    @property
    def wall(self) -> float:
        return self.end - self.start

    def save(self, path: Path) -> Path:
        """Write the profile as JSON; folders are made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_PROFILE.dump_json(self))
        return path


@dataclass(frozen=True, slots=True)
class Part:
    """Steps of a node, all of them or those of one size. Times in seconds."""

    node: str
    size: int | None  # rows that the step computed, sinks included; None: every size
    steps: int
    seconds: float
    idle: float  # the lane had nothing to do before these steps
    rows: float  # real rows a step
    waste: float  # share of `seconds` that went into rows of padding
    host: float | None = None  # of the port on the engine thread; known for a whole node


def load_profile(path: Path) -> Profile:
    """Read what `save` wrote."""
    return _PROFILE.validate_json(path.read_bytes())


async def profile(
    loaded: LoadedModel, workload: Workload, *, concurrency: int = 4, requests: int = 16, warmup: int = 2
) -> Profile:
    """Serve `requests` items of the workload in this process, `concurrency` at a time, after `warmup` more.

    Raises `BadRequest` where the model does not have the workload's task.
    """
    task = task_of(loaded, workload.route)
    engine = Engine([loaded], EngineSettings(lanes=1))
    engine.traces = deque()  # every step is kept
    await engine.start()
    try:
        items = workload.stream()
        await _serve(engine, loaded, task, [next(items) for _ in range(warmup)], concurrency, "warm")
        taken = [next(items) for _ in range(requests)]
        return await _measured(engine, loaded, task, workload, taken, concurrency)
    finally:
        await engine.stop()


def task_of(loaded: LoadedModel, route: str) -> str:
    """The task of a route, if the model has it."""
    tasks = [task for task in loaded.card.tasks if ROUTES.get(task) == route]
    if not tasks:
        raise BadRequest(f"{loaded.card.key} does not serve {route}.", param="route")
    return tasks[0]


async def _measured(
    engine: Engine, loaded: LoadedModel, task: str, workload: Workload, items: Sequence[Item], concurrency: int
) -> Profile:
    engine.traces.clear()
    with timed(loaded) as (host, pools):
        cpu, thread, start = time.process_time(), await engine.ask(engine.thread_seconds), time.perf_counter()
        await _serve(engine, loaded, task, items, concurrency, "run")
        end, used = time.perf_counter(), await engine.ask(engine.thread_seconds) - thread
    options = loaded.options
    return Profile(
        key=loaded.card.key,
        task=task,
        workload=workload.name,
        options={name: str(getattr(options, name)) for name in ("device", "numerics", "profile", "rows", "capture")},
        concurrency=concurrency,
        requests=len(items),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        client=machine(),
        start=start,
        end=end,
        steps=[t for t in engine.traces if start <= t.began <= end],
        engine_cpu=used,
        process_cpu=time.process_time() - cpu,
        host={node: dict(calls) for node, calls in host.items()},
        pools=dict(pools),
    )


async def _serve(
    engine: Engine, loaded: LoadedModel, task: str, items: Sequence[Item], concurrency: int, name: str
) -> None:
    room = asyncio.Semaphore(concurrency)

    async def one(i: int, item: Item) -> None:
        async with room:
            knobs = loaded.card.tasks[task](**item.body)
            handle = await engine.submit(
                loaded.card.key, Task(task, _inputs(item), knobs), request_id=f"{name}-{i}", seed=i
            )
            async with handle:
                async for _ in handle:
                    pass

    async with asyncio.TaskGroup() as group:
        for i, item in enumerate(items):
            group.create_task(one(i, item))


def _inputs(item: Item) -> dict[str, Any]:
    if item.audio is None:
        return {"text": item.text}
    samples, rate = soundfile.read(io.BytesIO(item.audio), dtype="float32", always_2d=True)
    return {"audio": Audio(samples.T, rate)}


@contextmanager
def timed(loaded: LoadedModel) -> Iterator[tuple[dict[str, Counter[str]], Counter[str]]]:
    """Time the port's calls: by node those on the engine thread, and those in the host pools."""
    host: dict[str, Counter[str]] = defaultdict(Counter)
    pools: Counter[str] = Counter()
    wrapped: list[tuple[Any, str]] = []
    targets = [(node, call, host[name]) for name, node in loaded.model.graph.nodes.items() for call in ON_ENGINE_THREAD]
    for owner, call, sink in [*targets, *((loaded.model, call, pools) for call in IN_POOLS)]:
        setattr(owner, call, _timing(getattr(owner, call), call, sink))
        wrapped.append((owner, call))
    try:
        yield host, pools
    finally:
        for owner, call in wrapped:
            delattr(owner, call)  # the class's own method shows again


def _timing(call: Callable[..., Any], name: str, sink: Counter[str]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            sink[name] += time.perf_counter() - began  # type: ignore[assignment]

    return run


def parts(found: Profile) -> list[Part]:
    """Nodes by their time, each followed by its sizes in order."""
    idle = idle_before(found.steps, found.start)
    by_node: dict[str, list[tuple[Trace, float]]] = defaultdict(list)
    for step in zip(sorted(found.steps, key=lambda t: t.began), idle, strict=True):
        by_node[step[0].node].append(step)
    lines: list[Part] = []
    for node, steps in sorted(by_node.items(), key=lambda kv: -sum(t.seconds for t, _ in kv[1])):
        lines.append(_part(node, None, steps, sum(found.host.get(node, {}).values())))
        sizes = sorted({t.size for t, _ in steps})
        lines += [_part(node, size, [s for s in steps if s[0].size == size]) for size in sizes]
    return lines


def _part(node: str, size: int | None, steps: Sequence[tuple[Trace, float]], host: float | None = None) -> Part:
    seconds = sum(t.seconds for t, _ in steps)
    wasted = sum(t.seconds * (1 - t.rows / t.size) for t, _ in steps if t.size)
    rows = sum(t.rows for t, _ in steps) / len(steps)
    waste = wasted / seconds if seconds else 0.0
    return Part(node, size, len(steps), seconds, sum(gap for _, gap in steps), rows, waste, host)


def idle_before(steps: Sequence[Trace], start: float) -> list[float]:
    """Seconds that the lane did nothing before each step, in the order in which they began."""
    free, gaps = start, []
    for step in sorted(steps, key=lambda t: t.began):
        gaps.append(max(0.0, step.began - free))
        free = max(free, step.began + step.seconds)
    return gaps


_PROFILE = TypeAdapter(Profile)
