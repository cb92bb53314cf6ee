"""S3Gen at its real dimensions with seeded random weights: the package one after another, and ours at once.

`python -m perf.s3gen_speed --tokens 50 --prompt 100` makes both hear the same voice and say the same tokens, in turns,
each with as many cores, and prints seconds of sound a second, and a second of CPU. The package runs in the recorder's
environment, in a process of its own; its weights are read by ours, so that both compute the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from models.chatterbox.s3gen_config import S3GenConfig
from models.chatterbox.s3gen_nodes import FlowNode, VocoderNode
from models.chatterbox.s3gen_weights import read, s3gen
from models.chatterbox.stream import WHOLE, edges
from oracles.recorder.environment import Environment
from oracles.recorder.run import ENVIRONMENTS, hidden
from serving.core.contract import Card, Graph, LoadedModel, Options, Packed, Piece, Task
from serving.core.engine import Engine, EngineSettings

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / "perf/peers/chatterbox_s3gen.py"
CARD = Card("s3gen", "chatterbox", "S3Gen alone", {}, "MIT", "recipe", sample_rate=24_000)


class Alone:
    """S3Gen without T3: the tokens are given. `serving.core.contract.Model`."""

    def __init__(self, net: Any, rows: int, bucket: int) -> None:
        flow = FlowNode(net.flow, WHOLE, rows, bucket, net.config.speaker.embedding)
        vocoder = VocoderNode(net.mel2wav, False, WHOLE, 8, rows, None)
        nodes = {node.name: node for node in (flow, vocoder)}
        self.graph = Graph(nodes, edges(WHOLE)[1:], {}, {"speak": tuple(nodes)})
        self.modules = {"s3gen": net}

    def prepare(self, task: Task) -> Any:
        return task.inputs["spoken"]

    def in_flight(self, job: Any) -> int:
        return 1

    def pieces(self, job: Any) -> Any:
        yield Piece("speak", {"s3gen_whole.tokens": Packed.one(job.tokens)}, job)

    def present(self, port: str, items: Packed) -> Any:
        return items.values


async def ours(net: Any, spoken: Sequence[Any], args: argparse.Namespace) -> tuple[float, float]:
    """Wall and CPU seconds of all requests at once."""
    lanes = args.lanes or args.cores
    settings = EngineSettings(lanes=lanes, threads=max(1, args.cores // lanes))
    engine = Engine([LoadedModel(CARD, Options(rows=8), Alone(net, args.rows, args.bucket))], settings)
    await engine.start()
    try:
        began, busy = time.monotonic(), time.process_time()
        await asyncio.gather(*(_one(engine, f"r{i}", one) for i, one in enumerate(spoken)))
        return time.monotonic() - began, time.process_time() - busy
    finally:
        await engine.stop()


async def _one(engine: Engine, name: str, spoken: Any) -> None:
    handle = await engine.submit(CARD.key, Task("speak", {"spoken": spoken}, None), request_id=name, seed=1)
    async for _ in handle:
        pass


def requests(count: int, inputs: Mapping[str, Tensor], steps: int) -> list[Any]:
    """So many requests to say the same in the same voice, each with a seed of its own."""
    names = ("prompt_token", "prompt_feat", "embedding")
    voice = SimpleNamespace(gen=SimpleNamespace(**{name: inputs[name] for name in names}))
    knobs = SimpleNamespace(n_cfm_timesteps=steps, watermark=False)
    tokens = inputs["tokens"].numpy()
    return [SimpleNamespace(voice=voice, seed=i, tokens=tokens, knobs=knobs) for i in range(count)]


class Package:
    """The package in its own process, asked over pipes."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        oracle = ROOT / "oracles/chatterbox_s3gen"
        python = Environment.read(oracle / "env.toml").interpreter(hidden(oracle.parent, ENVIRONMENTS))
        numbers = map(str, (args.tokens, args.prompt, args.steps, args.cores))
        command = [str(python), str(PEER), str(folder), *numbers]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:  # the package prints too
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError("the package's process has ended")

    def run(self, count: int) -> tuple[float, float]:
        """Wall and CPU seconds of so many utterances, one after another."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        answer = self._answer()
        return answer["seconds"], answer["cpu"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("tokens", 50), ("prompt", 100), ("steps", 10), ("requests", 8), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--package-requests", type=int, default=2, help="one after another, in each turn")
    parser.add_argument("--rows", type=int, default=1, help="rows of one solve")
    parser.add_argument("--bucket", type=int, default=1, help="tokens that solves are padded to multiples of")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="threads of each side")
    parser.add_argument("--lanes", type=int, default=0, help="steps at once; 0: as many as cores")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> None:
    args = parsed(argv)
    with tempfile.TemporaryDirectory() as scratch:
        package = Package(Path(scratch), args)
        net = s3gen(read(Path(scratch) / "s3gen.safetensors"), S3GenConfig())
        spoken = requests(args.requests, read(Path(scratch) / "inputs.safetensors"), args.steps)
        sound = args.tokens / 25
        for _ in range(args.repeats):
            theirs = [args.package_requests * sound / seconds for seconds in package.run(args.package_requests)]
            mine = [args.requests * sound / seconds for seconds in asyncio.run(ours(net, spoken, args))]
            for name, a, b in zip(("second", "second of CPU"), theirs, mine, strict=True):
                print(f"seconds of sound a {name}: package {a:.3f}, ours {b:.3f}, ratio {b / a:.2f}", flush=True)
        package.close()
    print(f"torch {torch.__version__}, {vars(args)}")


if __name__ == "__main__":
    main(sys.argv[1:])
