"""The first sound of a stream against the whole of it: Chatterbox at its real size on seeded random weights.

    python -m perf.chatterbox_stream --tokens 200 --prompt 150

One request at a time, in turns: streamed, up to its first chunk, and not streamed, to its end. A random network never
ends, so that every request has exactly so many tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import torch

from models import registry
from models.chatterbox.checkpoint import Speech, plan_of
from models.chatterbox.conditioning import Conditionals, Voices, noise
from models.chatterbox.config import VARIANTS
from models.chatterbox.graph import ChatterboxPort
from models.chatterbox.modules import Chatterbox
from models.chatterbox.request import Deployment
from models.chatterbox.s3gen import S3Gen
from models.chatterbox.s3gen_config import S3GenConfig
from models.chatterbox.t3 import T3
from models.chatterbox.voice_encoder import VoiceEncoder
from perf.chatterbox_parts import TEXT, Numbered, sentences
from serving.core.contract import LoadedModel, Options, Task
from serving.core.engine import Engine

KEY = "chatterbox"


def networks(layers: int) -> Chatterbox:
    """Every network with seeded weights; T3 with fewer layers to try the command itself."""
    torch.manual_seed(1)
    config = VARIANTS[KEY].t3
    config = type(config)(**{name: getattr(config, name) for name in config.__slots__} | {"layers": layers})
    made = Chatterbox(T3(config), VoiceEncoder(), S3Gen(S3GenConfig())).eval().requires_grad_(False)
    for name, parameter in made.t3.named_parameters():
        parameter.fill_(1.0) if name.endswith("norm.weight") else parameter.normal_(0, 0.02)
    return made


def port_of(options: Options, tokens: int, prompt: int, layers: int) -> ChatterboxPort:
    """The port over them, in a voice whose clip has `prompt` speech tokens."""
    limits: dict[str, Any] = {"max_new_tokens_limit": tokens, "max_text_tokens": TEXT, "watermark": False}
    variant, deployment = VARIANTS[KEY], Deployment(**limits)
    nets, voice = networks(layers), Conditionals(noise(prompt=variant.prompt_tokens).t3, noise(prompt=prompt).gen)
    speech = Speech(nets, variant, plan_of(variant, deployment), options, deployment)
    voices, texts = Voices({}, {"default": voice}), Numbered(sentences(1))
    return ChatterboxPort(variant, nets.t3, texts, voices, speech, options, deployment)


async def seconds(engine: Engine, name: str, *, live: bool) -> float:
    """Up to the first sound: of a stream its first chunk, else everything."""
    knobs = registry.card(KEY).tasks["speak"](ignore_eos=True)
    began = time.perf_counter()
    task = Task("speak", {"text": "0"}, knobs)
    async with await engine.submit(KEY, task, request_id=name, seed=1, live=live) as handle:
        async for output in handle:
            if output.port == "audio" and len(output.value):
                return time.perf_counter() - began
    raise RuntimeError("no sound came")


async def idle(engine: Engine) -> None:
    while engine.stats()["requests"]:
        await asyncio.sleep(0.05)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("tokens", 200), ("prompt", 150), ("turns", 1), ("layers", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    options = Options(rows=1)
    port = port_of(options, given.tokens, given.prompt, given.layers)
    engine = Engine([LoadedModel(registry.card(KEY), options, port)])
    await engine.start()
    found: dict[str, list[float]] = {"first": [], "whole": []}
    for turn in range(given.turns):
        for name, times in found.items():
            times.append(await seconds(engine, f"{name}{turn}", live=name == "first"))
            await idle(engine)
    steps = _shares(engine)
    await engine.stop()
    ratio = [round(first / whole, 3) for first, whole in zip(*found.values(), strict=True)]
    facts = {**vars(given), "threads": torch.get_num_threads(), "torch": torch.__version__}
    print(json.dumps({**facts, **found, "ratio": ratio, "seconds of steps": steps}, indent=1))


def _shares(engine: Engine) -> dict[str, Any]:
    """Seconds of each node's steps over the whole run."""
    found: dict[str, float] = {}
    for trace in engine.traces:
        found[trace.node] = round(found.get(trace.node, 0.0) + trace.seconds, 2)
    return found


if __name__ == "__main__":
    asyncio.run(main())
