"""Where a sentence's time goes in Kokoro, stage by stage: `python -m perf.kokoro_stages --frames 132 --threads 1,2`.

Real weights; stages take turns, and the least of the repeats is printed: wall, and CPU time of all threads, which other
programs disturb less. 132 frames are 3.3 s of speech. CPU time well above the wall's share of the cores is time that
torch's threads spend waiting for each other: OMP_WAIT_POLICY=passive lets them sleep.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from models import registry
from models.kokoro.layers import Span
from models.kokoro.modules import draw_noise
from models.kokoro.swift import SwiftGenerator
from serving.core.contract import Options

TOKENS = 64


def stages(net: Any, frames: int) -> Mapping[str, Callable[[], Any]]:
    """Each stage on inputs of its own, of the size that the frames ask for."""
    draw = torch.Generator().manual_seed(0)
    values, channels = 2 * frames, net.config.hidden_dim
    tokens = torch.randint(1, 100, (1, TOKENS), generator=draw)
    style = 0.1 * torch.randn(1, 2 * net.config.style_dim, generator=draw)
    prosody = torch.randn(1, frames, channels + net.config.style_dim, generator=draw)
    text = torch.randn(1, frames, channels, generator=draw)
    noise = draw_noise(draw, frames * net.config.samples_per_frame)[None]
    said, laid, doubled = torch.tensor([TOKENS]), torch.tensor([frames]), torch.tensor([values])
    spans = Span.of(laid, frames), Span.of(doubled, values)
    timbre, manner = style.split(net.config.style_dim, 1)
    x, f0 = net.trunk(prosody, text, laid, style)
    generator = net.decoder.generator
    source = generator.source(f0, noise, doubled)
    swift = SwiftGenerator(generator)
    return {
        "ALBERT": lambda: net.bert(tokens, Span.of(said, TOKENS).mask),
        "text half, ALBERT in it": lambda: net.text_half(tokens, said, style, torch.ones(1)),
        "noise": lambda: draw_noise(draw, noise.shape[2]),
        "pitch and energy": lambda: net.predictor.curves(prosody, manner, *spans),
        "trunk, pitch and energy in it": lambda: net.trunk(prosody, text, laid, style),
        "source": lambda: generator.source(f0, noise, doubled),
        "generator, default": lambda: swift(x[0].t().contiguous(), timbre[0], source[0].t()),
        "generator, exact": lambda: generator(x, timbre, source, doubled),
    }


def measured(stage: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds of wall and of CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    stage()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=132)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(argv)
    net: Any = registry.load("kokoro", Options()).model.modules["kokoro"]
    print("| threads | stage | wall, ms | CPU, ms |\n| --- | --- | --- | --- |")
    for threads in map(int, args.threads.split(",")):
        torch.set_num_threads(threads)
        with torch.inference_mode():
            each = stages(net, args.frames)
            turns = [{name: measured(stage) for name, stage in each.items()} for _ in range(args.repeats)]
        for name in each:
            wall, cpu = (min(turn[name][i] for turn in turns) for i in range(2))
            print(f"| {threads} | {name} | {wall:.0f} | {cpu:.0f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
