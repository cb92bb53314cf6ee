"""When requests are sent. Closed loops send when an answer has come; open loops send by a seeded schedule."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from perf.schema import Load
from serving.errors import BadRequest


def closed(concurrency: int) -> Load:
    """`concurrency` requests in flight at all times."""
    if concurrency < 1:
        raise BadRequest(f"concurrency must be at least 1, got {concurrency}.", param="concurrency")
    return Load("closed", concurrency)


def gaps(load: Load, seed: int, trace: Sequence[float] = ()) -> Iterator[float]:
    """Seconds from one request to the next, without end unless it is a trace.

    `constant` and `poisson` send `level` a second. `ramp` starts at a tenth of it and adds a tenth every ten
    requests. `burst` sends `level` at once, every second. `trace` replays offsets from its start, `level`
    times as fast.
    """
    rng = random.Random(seed)
    if load.kind == "constant":
        yield from itertools.repeat(1 / load.level)
    elif load.kind == "poisson":
        while True:
            yield rng.expovariate(load.level)
    elif load.kind == "ramp":
        for i in itertools.count():
            yield 10 / (load.level * min(10, 1 + i // 10))
    elif load.kind == "burst":
        for i in itertools.count():
            yield 1.0 if i and i % int(load.level) == 0 else 0.0
    else:
        yield from ((b - a) / load.level for a, b in itertools.pairwise([0.0, *trace]))
