"""Which setting of a peer is the best here? `python -m perf.peers.search kokoro --concurrency 1,8`

Every setting of a peer (`kokoro`, `kokoro-2x1`, ...) in one run, in turns. The best at each load is named; the best of
all has the highest geometric mean of throughput over the loads, and the bare name should be that one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean, median

from perf.bench import run_bench
from perf.metrics import HEADLINE, for_run
from perf.peers import PEERS
from perf.schema import Point, Run
from perf.validity import flags, used


def settings_of(name: str) -> list[str]:
    """The peer's names: itself and those of its other settings."""
    mine = PEERS[name]
    return [other for other, peer in PEERS.items() if (peer.program, peer.route) == (mine.program, mine.route)]


def best(run: Run) -> str | None:
    """The label with the highest geometric mean of throughput over the loads; None where none answered at all."""
    levels = {p.load.level for p in run.points}
    rates = {label: [throughput(run, label, level) or 0.0 for level in levels] for label in run.config.models}
    found = {label: geometric_mean(values) for label, values in rates.items() if values and all(values)}
    return max(found, key=lambda label: found[label], default=None)


def throughput(run: Run, label: str, level: float) -> float | None:
    """The route's throughput of a target at a load: the median over repeats."""
    route = run.config.routes[label]
    metric = for_run(run.config, route)[HEADLINE[route]]
    values = [value for p in _points(run, label, level) if (value := metric.result(p).value) is not None]
    return median(values) if values else None


def lines(run: Run) -> Iterator[str]:
    """A table: setting by load, invalid points marked, and the best."""
    levels = sorted({p.load.level for p in run.points})
    yield "| Setting | " + " | ".join(f"c={level:g}" for level in levels) + " |"
    yield "| --- |" + " --- |" * len(levels)
    bad = {(x, n) for x in run.config.models for n in levels if any(_invalid(run, p) for p in _points(run, x, n))}
    for label in run.config.models:
        cells = [f"{throughput(run, label, n) or 0:.3g}{' (invalid)' * ((label, n) in bad)}" for n in levels]
        yield f"| {label} | " + " | ".join(cells) + " |"
    tops = (max(run.config.models, key=lambda label: throughput(run, label, n) or 0.0) for n in levels)
    yield "| best | " + " | ".join(tops) + " |"
    yield f"\nbest of all: {best(run)}"


def _points(run: Run, label: str, level: float) -> list[Point]:
    mine = [p for p in run.points if p.label == label and p.load.level == level]
    return used(mine, run.config, run.client.get("cores", 1))


def _invalid(run: Run, point: Point) -> bool:
    return any(f.level == "invalid" for f in flags(point, run.config, run.client.get("cores", 1)))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("--concurrency", default="1,8")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    names, route = settings_of(args.peer), PEERS[args.peer].route
    loads = [int(part) for part in args.concurrency.split(",")]
    budget = 60 * args.minutes
    run = run_bench(
        route=route, peers=names, concurrency=loads, repeats=args.repeats, budget=budget, out=args.out, say=print
    )
    print("\n".join(lines(run)))


if __name__ == "__main__":
    main()
