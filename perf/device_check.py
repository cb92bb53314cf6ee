"""What holds on an NVIDIA GPU: `python -m perf.device_check`, one table in at most ten minutes.

Attention backends against attention's definition, eager steps against static ones, and models through the engine
against the CPU. Without a GPU it says so and ends with status 2; `--rehearse` then runs the same on the CPU, to try
the script, and says nothing of a GPU. A row that had no time, or whose package or mode is not there, is "not run".
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from typing import Any

import numpy as np
import torch

from models import registry
from perf.fingerprint import machine
from serving.attention import BACKENDS, Layout, Ring, attend_with
from serving.capture import MODES
from serving.core.contract import Options, Task
from serving.core.engine import Engine
from serving.errors import SetupError

MINUTES = 9.0
PACKAGES = ("torch", "triton", "flashinfer-python", "numpy", "transformers")
DTYPES = {"float32": (torch.float32, 2e-5), "float16": (torch.float16, 2e-2), "bfloat16": (torch.bfloat16, 1e-1)}
# name: units, stored keys, page size, causal, ring; as the backends' suite has them, with a GPU's head size.
CASES: dict[str, tuple[list[int], list[int], int, bool, Ring | None]] = {
    "decoding": ([1, 1, 1], [1, 33, 16], 16, True, None),
    "prefill in chunks": ([20, 1, 7, 33], [20, 30, 45, 33], 16, True, None),
    "reading": ([1, 4, 18], [25, 8, 40], 16, False, None),
    "window and sinks": ([1, 4, 2], [20, 23, 9], 4, True, Ring(5, 3, 4, 8)),
}
DIM, KV_HEADS = 64, 2
requests = count()
suite: Any = import_module("serving.attention.tests.test_backends")  # attention by its definition, keys in pages
kit: Any = import_module("parity.invariants.kit")  # tasks of every kind that a key serves


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table."""

    what: str
    found: str
    result: str  # "pass", "fail", "not run"


Check = tuple[str, Callable[[], tuple[str, bool]]]  # what is checked; what was found, and whether that is right


def attention_error(backend: str, dtype: str, case: str, device: str) -> tuple[str, bool]:
    """The greatest difference from the definition, in float64 on the CPU, over a case's rows."""
    units, lengths, page_size, causal, ring = CASES[case]
    kind, bound = DTYPES[dtype]
    gen = torch.Generator().manual_seed(1)
    keys = [tuple(torch.randn(2, KV_HEADS, n, DIM, generator=gen).to(kind).float()) for n in lengths]
    pools, table = suite.place(keys, page_size, ring)
    starts, stored = np.concatenate([[0], np.cumsum(units)]), np.array(lengths)
    first = stored - np.array(units) if causal else stored
    layout = Layout(starts, first, stored, np.arange(1, len(units) + 1), table, page_size, causal, DIM**-0.5, ring)
    q = torch.randn(int(starts[-1]), suite.HEADS, DIM, generator=gen).to(kind)
    attend = attend_with(backend, "invariant" if backend == "tiles" else "fast")
    k, v = (pool.to(kind).to(device) for pool in pools)
    got = attend(q.to(device), k, v, layout).float().cpu()
    window, sinks = (ring.window, ring.sinks) if ring else (None, 0)
    spans = [slice(starts[i], starts[i + 1]) for i in range(len(units))]
    wants = [suite.naive(q[s].float(), *keys[i], int(first[i]), DIM**-0.5, window, sinks) for i, s in enumerate(spans)]
    error = float((got - torch.cat(wants)).abs().max())
    return f"greatest difference {error:.2g}, bound {bound:g}", error <= bound


async def outputs(options: Options, key: str, todo: list[Task]) -> tuple[list[dict[str, Any]], float]:
    """What each task gave by port, all at once after one alone, and the seconds that the second round took."""
    engine = Engine([registry.load(key, options)])
    await engine.start()
    try:
        await _one(engine, key, todo[0])
        began = time.perf_counter()
        found = await asyncio.gather(*(_one(engine, key, task) for task in todo))
        return list(found), time.perf_counter() - began
    finally:
        await engine.stop()


async def _one(engine: Engine, key: str, task: Task) -> dict[str, Any]:
    handle = await engine.submit(key, task, request_id=f"d{next(requests)}", seed=1)
    ports: dict[str, list[Any]] = {}
    async for output in handle:
        ports.setdefault(output.port, []).append(output.value)
    return ports


def distance(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> tuple[str, bool]:
    """Texts must be equal; arrays as long, and within a hundredth of their scale."""
    worst, texts, lengths = 0.0, True, True
    for a, b in zip(one, other, strict=True):
        for port in a.keys() - {"info"}:
            if isinstance(a[port][0], np.ndarray):
                x, y = np.concatenate(a[port]), np.concatenate(b.get(port) or [np.zeros(0)])
                lengths &= x.shape == y.shape
                if x.shape == y.shape and x.size:
                    worst = max(worst, float(np.abs(x.astype(float) - y.astype(float)).max() / max(1e-9, np.ptp(x))))
            else:
                texts &= _said(a[port]) == _said(b.get(port))
    said = f"texts {'equal' if texts else 'differ'}, lengths {'equal' if lengths else 'differ'}"
    return f"{said}, greatest difference {worst:.2g} of the range", texts and lengths and worst <= 0.01


def _said(values: Any) -> str:
    """The words alone: times of segments may differ by a frame."""
    parts = values or []
    return " ".join(str(getattr(s, "text", s)) for part in parts for s in (part if isinstance(part, list) else [part]))


def compare(key: str, one: Options, other: Options) -> tuple[str, bool]:
    """The key's tasks under two sets of options."""
    todo = kit.tasks(key)
    (a, slow), (b, quick) = (asyncio.run(outputs(options, key, todo)) for options in (one, other))
    said, right = distance(a, b)
    return f"{said}; {len(todo)} requests at once: {slow:.2f} s and {quick:.2f} s", right


def checks(device: str) -> Iterator[Check]:
    """In the order of what is wanted most."""
    for backend in BACKENDS:
        for dtype in DTYPES:
            for case in CASES:
                yield f"attention {backend}, {dtype}, {case}", partial(attention_error, backend, dtype, case, device)
    for key in ("toy", "whisper_tiny_en"):
        cpu, there = Options(), Options(device=device)
        yield f"{key}: cpu against {device}", partial(compare, key, cpu, there)
        for mode in ("static", *(m for m in MODES if m not in ("eager", "static"))):
            captured = Options(device=device, capture=mode)
            yield f"{key} on {device}: eager against {mode}", partial(compare, key, there, captured)


def run(check: Check, until: float) -> Row:
    """A row; an error is a finding, a missing package is not."""
    what, do = check
    if time.monotonic() > until:
        return Row(what, "no time left", "not run")
    try:
        found, right = do()
    except (SetupError, ImportError) as error:
        return Row(what, str(error).split("\n")[0], "not run")
    except Exception as error:
        return Row(what, f"{type(error).__name__}: {error}".split("\n")[0][:160], "fail")
    return Row(what, found, "pass" if right else "fail")


def header(device: str) -> Iterator[str]:
    """Date, commit, device, versions."""
    here: Mapping[str, Any] = machine()
    commit = f"{here['commit']}{', with changes' if here['dirty'] else ''}"
    yield f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit}"
    yield f"{here['gpu'] or 'no NVIDIA GPU'}; CUDA of torch: {torch.version.cuda or 'none'}; device {device}"
    yield ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    if set(MODES) == {"eager", "static"}:
        yield "CUDA graphs: not run, there is no such capture mode."


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def main(arguments: list[str] | None = None) -> int:
    """0: every row that ran passed; 1: one failed; 2: there is no GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no row begins after these")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU: run on the CPU to try the script")
    parser.add_argument("--only", default="", help="rows whose name holds this text")
    args = parser.parse_args(arguments)
    there = torch.cuda.is_available()
    if not there:
        print("No NVIDIA GPU that torch can use: nothing was checked.", flush=True)
        if not args.rehearse:
            return 2
        print("A rehearsal on the CPU follows; it says nothing of a GPU.", flush=True)
    os.environ["TRITON_INTERPRET"] = str(int(not there))  # read when the kernels are first imported
    device, until = "cuda" if there else "cpu", time.monotonic() + 60 * args.minutes
    print("\n".join(header(device)) + "\n\n| Check | Found | Result |\n| --- | --- | --- |", flush=True)
    rows = []
    for check in (c for c in checks(device) if args.only in c[0]):
        rows.append(row := run(check, until))
        print(f"| {row.what} | {row.found} | {row.result} |", flush=True)
    results = [row.result for row in rows]
    print("\n" + ", ".join(f"{results.count(r)} {r}" for r in ("pass", "fail", "not run")))
    return 2 if not there else int("fail" in results)


if __name__ == "__main__":
    sys.exit(main())
