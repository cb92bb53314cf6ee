"""T3 at its real size on seeded random weights: eight requests at once in the engine, and the package one by one.

Both sides run in one process and one run, in the environment that records chatterbox-tts, over the same weights:

    python -m perf.chatterbox_t3 --requests 8 --tokens 64

A random network never ends, so that every request has exactly so many tokens; texts have the length of a sentence.
The two take turns; what is printed are tokens a second of each turn, the whole, and decoding alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oracles import stubs
from oracles.recorder.environment import Environment
from oracles.recorder.run import hidden

ORACLE = Path(__file__).resolve().parents[1] / "oracles" / "chatterbox"
PROMPT = 150
WEIGHT = 0.5
KEY = "chatterbox"


def in_the_packages_environment() -> None:
    """Run this command again where the package is."""
    if find_spec("chatterbox") is not None:
        return
    python = Environment.read(ORACLE / "env.toml").interpreter(hidden(ORACLE.parent, ".environments"))
    os.environ["PYTHONPATH"] = str(ORACLE.parents[1])
    os.execv(python, [str(python), "-m", "perf.chatterbox_t3", *sys.argv[1:]])


def package(seed: int, layers: int) -> Any:
    """The package's T3 with seeded weights, and those weights."""
    stubs.install(Environment.read(ORACLE / "env.toml").stubs)
    from chatterbox.models.t3.llama_configs import LLAMA_520M_CONFIG_DICT
    from chatterbox.models.t3.t3 import T3

    LLAMA_520M_CONFIG_DICT["num_hidden_layers"] = layers

    torch.manual_seed(seed)
    with torch.device("meta"):
        made = T3()
    state = {name: torch.empty(value.shape).normal_(0, 0.02) for name, value in made.state_dict().items()}
    for name, value in state.items():
        if name.endswith("norm.weight"):
            value.fill_(1.0)
    made.to_empty(device="cpu")
    made.load_state_dict(state, assign=True)
    made.tfmr.rotary_emb = type(made.tfmr.rotary_emb)(made.cfg)  # its frequencies were on the meta device
    return made.eval().requires_grad_(False), state


def said_by_the_package(made: Any, voice: Any, texts: list[np.ndarray], tokens: int) -> dict[str, float]:
    """Seconds for the texts one after another, and those that decoding took of them."""
    from chatterbox.models.t3.modules.cond_enc import T3Cond

    steps: list[float] = []
    made.speech_head.register_forward_hook(lambda *_: steps.append(time.perf_counter()))
    began, decoding = time.perf_counter(), 0.0
    for text in texts:
        steps.clear()
        cond = T3Cond(
            speaker_emb=voice.t3.speaker_emb,
            cond_prompt_speech_tokens=voice.t3.cond_prompt_speech_tokens,
            emotion_adv=torch.full((1, 1, 1), 0.5),
        )
        ids = torch.from_numpy(text)[None]
        made.inference(t3_cond=cond, text_tokens=torch.cat([ids, ids]), max_new_tokens=tokens, cfg_weight=WEIGHT)
        decoding += steps[-1] - steps[0]
    seconds = time.perf_counter() - began
    count = len(texts)
    return {"tokens_per_s": count * tokens / seconds, "decode_tokens_per_s": count * (len(steps) - 1) / decoding}


async def said_by_the_engine(state: dict[str, Any], voice: Any, texts: list[np.ndarray], tokens: int) -> Any:
    """An engine, and a function that says the texts all at once: the same figures."""
    from models import registry
    from models.chatterbox import weights
    from models.chatterbox.conditioning import Voices
    from models.chatterbox.config import VARIANTS
    from models.chatterbox.graph import ChatterboxPort
    from models.chatterbox.request import Deployment
    from perf.chatterbox_parts import TEXT, Numbered, Silent
    from serving.core.contract import LoadedModel, Options, Task
    from serving.core.engine import Engine

    options = Options(rows=len(texts), numerics="fast")
    limits: dict[str, Any] = {"max_new_tokens_limit": tokens, "max_text_tokens": TEXT, "prefill_tokens": 512}
    net, voices = weights.load_t3(state), Voices({}, {"default": voice})
    port = ChatterboxPort(VARIANTS[KEY], net, Numbered(texts), voices, Silent(), options, Deployment(**limits))
    engine = Engine([LoadedModel(registry.card(KEY), options, port)])
    await engine.start()
    knobs = registry.card(KEY).tasks["speak"](cfg_weight=WEIGHT, ignore_eos=True)

    async def one(number: int) -> None:
        handle = await engine.submit(
            KEY, Task("speak", {"text": str(number)}, knobs), request_id=f"r{time.time()}{number}"
        )
        async for _ in handle:
            pass

    async def turn() -> dict[str, float]:
        engine.traces.clear()
        began = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(len(texts))))
        seconds = time.perf_counter() - began
        full = [t for t in engine.traces if t.node == "t3" and t.units == 2 * len(texts)]
        decoding = sum(trace.seconds for trace in full)
        return {"tokens_per_s": len(texts) * tokens / seconds, "decode_tokens_per_s": len(texts) * len(full) / decoding}

    return engine, turn


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=8, help="at once in the engine")
    parser.add_argument("--package-requests", type=int, default=2, help="one after another, in each turn")
    parser.add_argument("--tokens", type=int, default=64, help="speech tokens of a request")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--layers", type=int, default=30, help="fewer to try the command itself")
    given = parser.parse_args()
    from models.chatterbox.conditioning import noise
    from perf.chatterbox_parts import sentences

    made, state = package(1, given.layers)
    voice, texts = noise(prompt=PROMPT), sentences(given.requests)
    engine, turn = await said_by_the_engine(state, voice, texts, given.tokens)
    found: dict[str, list[dict[str, float]]] = {"package": [], "engine": []}
    for number in range(given.turns):
        print(f"turn {number + 1} of {given.turns}", file=sys.stderr, flush=True)
        found["engine"].append(await turn())
        found["package"].append(said_by_the_package(made, voice, texts[: given.package_requests], given.tokens))
    await engine.stop()
    names = ("tokens_per_s", "decode_tokens_per_s")
    best = {side: {n: max(one[n] for one in turns) for n in names} for side, turns in found.items()}
    ratio = {name: best["engine"][name] / best["package"][name] for name in names}
    threads = torch.get_num_threads()
    print(
        json.dumps({**vars(given), "threads": threads, "torch": torch.__version__, **found, "ratio": ratio}, indent=1)
    )


if __name__ == "__main__":
    in_the_packages_environment()
    asyncio.run(main())
