"""How good is the load generator itself? `python -m perf.selfcheck`

A scripted server on the same machine writes the moment into each chunk; the lag is how much later the client
has it. The client runs on one core; the server has the others, or that one where there is no other. Also: the client's
CPU time for a chunk, and that every request is accounted for under failures.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from perf.arrivals import closed
from perf.client import routes
from perf.client.clock import Clock
from perf.client.readers import AudioReader
from perf.health import Watch
from perf.launch import Launch, running
from perf.loadgen import Generator, Plan
from perf.metrics.totals import counts
from perf.schema import Point
from perf.workloads import sentences


class StampReader(AudioReader):
    """Reads the server's moment from each chunk."""

    lags: list[tuple[float, float]] = []  # noqa: RUF012 - one list for all readers of the check: when, and how late
    origin = 0.0  # of the clock that run.json's times are on

    def _audio(self, t: float, data: bytes, complete: bool) -> None:
        at = 44 if data[:4] == b"RIFF" else 0
        self.lags.append((t, self.origin + t - struct.unpack_from("<d", data, at)[0]))
        super()._audio(t, data, complete)


async def measure(url: str, connections: int, requests: int) -> Point:
    """A closed loop on the stamping server."""
    clock = Clock()
    StampReader.origin = clock.origin
    sender = routes.Sender(routes.Target(url, "fake"), "speech", clock)
    sender.prepare(list(sentences().items))
    plan = Plan(requests, connections, timeout=30.0)
    generator = Generator(sender, sentences().stream(), clock, closed(connections), plan)
    return await generator.run(Watch(clock), asyncio.Event())


def check(connections: int, chunks_a_second: float, seconds: float, fail_every: int) -> tuple[Point, float, float]:
    """The point, the client's CPU seconds for it, and the seconds that it waited for its core."""
    pieces = 100
    gap = connections / chunks_a_second * pieces / (pieces + 1)  # a request's first chunk comes later than the others
    requests = max(connections, int(chunks_a_second * seconds / pieces))
    command = [sys.executable, "-m", "perf.fake_server", "--port", "0", "--stamp", "--size", "1200"]
    options = {"first": gap, "gap": gap, "pieces": pieces, "fail-every": fail_every, "spread": connections}
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    with tempfile.TemporaryDirectory() as logs, running(Launch(command, "fake", "fake"), Path(logs)) as live:
        assert live.pid is not None
        _part(live.pid)
        cpu, waited = time.process_time(), run_delay()
        point = asyncio.run(measure(live.target.url, connections, requests))
        return point, time.process_time() - cpu, run_delay() - waited


def run_delay() -> float:
    """Seconds that this process was ready and its core was taken; 0 where the system does not say."""
    path = Path("/proc/self/schedstat")
    return int(path.read_text().split()[1]) / 1e9 if path.exists() else 0.0


def _part(server: int) -> None:
    """One core for this process, the others for the server; Linux alone lets a process choose."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])
    os.sched_setaffinity(server, cores[:-1] or cores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--chunks", type=float, default=2000.0, help="a second, over all connections")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--fail-every", type=int, default=20)
    args = parser.parse_args()
    routes.READERS = {**routes.READERS, "speech": StampReader}
    point, cpu, waited = check(args.connections, args.chunks, args.seconds, args.fail_every)
    lags, found = np.array([lag for t, lag in StampReader.lags if point.start <= t <= point.end]), counts(point)
    span = point.samples[-1].t - point.samples[0].t
    print(f"{len(lags) / point.seconds:.0f} chunks a second over {args.connections} connections, {point.seconds:.1f} s")
    print("lag p50 {:.2f} ms, p99 {:.2f} ms, max {:.2f} ms".format(*1e3 * np.percentile(lags, [50, 99, 100])))
    print(
        f"client CPU {1e6 * cpu / len(StampReader.lags):.0f} us a chunk, {100 * cpu / span:.0f} % of a core;", end=" "
    )
    print(f"ready and without its core {100 * waited / span:.1f} % of the time")
    print(f"{found.sent} sent = {found.ok} ok + {found.failed} failed + {found.dropped} dropped")


if __name__ == "__main__":
    main()
