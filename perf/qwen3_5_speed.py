"""Qwen3.5 at the dimensions of its 0.8B, with seeded random weights, beside transformers and llama.cpp in one run.

    python -m perf.qwen3_5_speed [--beside transformers llama.cpp-f32] [--dtype float32] [--layers 24] [--repeats 3]

Three questions, each asked of every side in turn: output tokens a second of one request, of sixteen (ours and
llama.cpp's at once, transformers' one after another), and the time to the first token of a long prompt. Prints medians
with the least and the most, and the ratio of medians with its bootstrap interval, by the clock and by the processor
time of the side's process: on a machine that others use, with one thread, the second is the one that says something.

llama.cpp gets the same weights in a GGUF file: f32, or stored and multiplied as f16 or q8_0, which is less work with
another result. How many of its greedy tokens are ours is printed first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from perf.gate import ratio_interval
from perf.peers.llama_cpp import FORMATS
from perf.qwen3_5_sides import LONG, PROMPT, ROWS, Llama, Ours, Side, Theirs, Time, gguf, port, reference, text

PEERS = {"transformers": "", **{f"llama.cpp-{kind.lower()}": kind for kind in FORMATS}}
CHECKED = 8  # greedy tokens that the sides are compared by


def told(question: str, taken: Mapping[str, Sequence[Time]]) -> list[str]:
    """A line for each side and clock: seconds, and how many times ours they are. The first side is ours."""
    lines = []
    for what, place in (("clock", 0), ("processor", 1)):
        sides = {name: [one[place] for one in times] for name, times in taken.items()}
        ours = next(iter(sides.values()))
        for name, seconds in sides.items():
            spread = f"{statistics.median(seconds):8.4f} s [{min(seconds):.4f}, {max(seconds):.4f}]"
            times = "" if seconds is ours else _times(ours, seconds)
            lines.append(f"{question:24} {what:10} {name:16} {spread}{times}")
    return lines


def _times(ours: Sequence[float], theirs: Sequence[float]) -> str:
    ratio, low, high = ratio_interval(ours, theirs)
    within = "" if low is None else f" [{low:.2f}, {high:.2f}]"
    return f"   {ratio:5.2f} x{within}"


async def measure(sides: Sequence[Side], repeats: int, new: int, long: int) -> None:
    """The sides in turn, after a short round of each that is not counted."""
    ours, *others = [await side.said(text(PROMPT, 999), CHECKED) for side in sides]
    for side, tokens in zip(sides[1:], others, strict=True):
        same = next((i for i, pair in enumerate(zip(ours, tokens, strict=True)) if len(set(pair)) > 1), CHECKED)
        print(f"{side.name}: the first {same} of {CHECKED} greedy tokens are ours", flush=True)
    for side in sides:
        await side.rate(ROWS if side.at_once else 1, 2)  # the first step of a number of rows takes longer
    alone: dict[str, list[Time]] = defaultdict(list)
    together: dict[str, list[Time]] = defaultdict(list)
    firsts: dict[str, list[Time]] = defaultdict(list)
    for _ in range(repeats):
        for side in sides:
            alone[side.name].append(await side.rate(1, new))
        for side in sides:
            together[side.name].append(await side.rate(ROWS, new) if side.at_once else alone[side.name][-1])
        print(*told("one request, a token", alone), *told("sixteen, a token", together), sep="\n", flush=True)
    for _ in range(long):
        for side in sides:
            firsts[side.name].append(await side.first())
        print(*told(f"first of {LONG} tokens", firsts), sep="\n", flush=True)


async def run(given: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
    """Makes the sides and measures them."""
    dtype = getattr(torch, given.dtype)
    model = reference(given.layers, dtype)
    made: Any = (loaded := port(model, given.layers, dtype)).model
    kinds = [PEERS[name] for name in given.beside if PEERS[name]]
    print(f"{given.dtype}, {given.layers} layers, {torch.get_num_threads()} threads, torch {torch.__version__}")
    sides: list[Side] = [ours := Ours(loaded)]
    if "transformers" in given.beside:
        sides.append(Theirs(model, made.tokenizer))
    for kind, file in zip(kinds, gguf(folder, model, given.layers, kinds), strict=True) if kinds else ():
        sides.append(side := Llama(kind, file, made.tokenizer, given.new))
        stack.callback(side.process.close)
        print(f"{side.name}: {json.dumps(side.process.about)}", flush=True)
    await ours.engine.start()
    try:
        await measure(sides, given.repeats, given.new, given.long)
    finally:
        await ours.engine.stop()


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--beside", nargs="+", default=["transformers"], choices=PEERS)
    asked.add_argument("--gguf", type=Path, help="folder that keeps llama.cpp's files (4 bytes a parameter for f32)")
    asked.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    asked.add_argument("--layers", type=int, default=24)
    asked.add_argument("--repeats", type=int, default=3)
    asked.add_argument("--new", type=int, default=48, help="tokens of an answer")
    asked.add_argument("--long", type=int, default=1, help="repeats of the long prompt")
    given = asked.parse_args()
    with ExitStack() as stack:
        folder = given.gguf or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = folder / f"{given.dtype}-{given.layers}"
        folder.mkdir(parents=True, exist_ok=True)
        asyncio.run(run(given, folder, stack))


if __name__ == "__main__":
    main()
