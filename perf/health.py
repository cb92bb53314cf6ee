"""Watches the machine and the client itself while a load runs: evidence for or against the numbers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from perf.client.clock import Clock
from perf.schema import Sample

TICK = 0.02  # how often the event loop's lateness is probed, seconds
PERIOD = 0.5  # how often the machine is read, seconds
LOOK = 0.25  # seconds over which a server is looked at to see whether it still works
IDLE = 0.2  # cores
PATIENCE = 40.0  # seconds


class Watch:
    """An async context: `samples` of CPU time, and `stalls`, how late the client's loop woke at each tick."""

    def __init__(self, clock: Clock, server_pid: int | None = None, proc: Path = Path("/proc")) -> None:
        self._clock, self._pid, self._proc = clock, server_pid, proc
        self.samples: list[Sample] = []
        self.stalls: list[float] = []

    async def __aenter__(self) -> Self:
        self.samples.append(self._sample())
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.samples.append(self._sample())

    async def _run(self) -> None:
        due = read = self._clock()
        while True:
            due = max(due + TICK, self._clock())
            await asyncio.sleep(due - self._clock())
            now = self._clock()
            self.stalls.append(round(max(0.0, now - due), 6))
            if now - read >= PERIOD:
                read = now
                self.samples.append(self._sample())

    def _sample(self) -> Sample:
        pids = tree(self._pid, self._proc) if self._pid else []
        return Sample(
            self._clock(),
            busy=machine_seconds(self._proc),
            client=sum(os.times()[:2]),
            server=process_seconds(pids, self._proc) if pids else None,
            throttled=throttled_seconds(),
            server_rss=resident(pids, self._proc) if pids else None,
        )


async def idle(pid: int, proc: Path = Path("/proc"), patience: float = PATIENCE) -> bool:
    """Wait until a server does not work any more: some go on with what clients have left, at the cost of the next.

    Whether it was seen idle within `patience` seconds.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + patience
    while True:
        before, began = process_seconds(tree(pid, proc), proc), loop.time()
        await asyncio.sleep(LOOK)
        if process_seconds(tree(pid, proc), proc) - before <= IDLE * (loop.time() - began):
            return True
        if loop.time() >= end:
            return False


def machine_seconds(proc: Path = Path("/proc")) -> float | None:
    """CPU seconds that all processes have used since boot: user, nice, system, irq, softirq, steal."""
    try:
        fields = [int(x) for x in (proc / "stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return None
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def tree(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """A process and its descendants."""
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        for children in proc.glob(f"{found[-1]}/task/*/children"):
            try:
                waiting += [int(child) for child in children.read_text().split()]
            except OSError:
                continue  # the thread ended while we looked
    return found


def process_seconds(pids: Iterable[int], proc: Path = Path("/proc")) -> float:
    """CPU seconds of these processes, and of their children that have ended."""
    return sum(sum(map(int, stat[11:15])) for stat in _stats(pids, proc)) / os.sysconf("SC_CLK_TCK")


def resident(pids: Iterable[int], proc: Path = Path("/proc")) -> int:
    """Bytes of memory that these processes hold."""
    return sum(int(stat[21]) for stat in _stats(pids, proc)) * os.sysconf("SC_PAGE_SIZE")


def throttled_seconds(cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Seconds for which the container's CPU quota has stopped it."""
    for name, scale in (("cpu.stat", 1e-6), ("cpu/cpu.stat", 1e-9)):
        try:
            lines = (cgroup / name).read_text().splitlines()
        except OSError:
            continue
        values = dict(line.split() for line in lines)
        return int(values.get("throttled_usec", values.get("throttled_time", 0))) * scale
    return None


def _stats(pids: Iterable[int], proc: Path) -> list[list[str]]:
    """Fields of /proc/PID/stat after the name (which may hold spaces), for processes that still run."""
    found = []
    for pid in pids:
        try:
            found.append((proc / f"{pid}" / "stat").read_text().rpartition(")")[2].split())
        except OSError:
            continue  # it ended
    return found
