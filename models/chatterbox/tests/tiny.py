"""A tiny T3 of each kind from seeded weights, and a synthesiser that says which tokens it was given."""

from __future__ import annotations

import numpy as np
import torch

from models.chatterbox.conditioning import Voices
from models.chatterbox.conditioning import noise as voice
from models.chatterbox.config import VARIANTS, T3Config
from models.chatterbox.graph import ChatterboxPort
from models.chatterbox.request import Deployment
from models.chatterbox.t3 import T3
from serving.core.contract import Edge, Node, Offer, Options, Packed, Settled, Verdict
from serving.core.streams import Each, Ramp

CONFIGS = {
    "chatterbox": T3Config(704, 8194, 128, 192, 4, 32, 62, 192),
    "chatterbox_multilingual": T3Config(2454, 8194, 128, 192, 4, 32, 62, 192),
    "chatterbox_turbo": T3Config(300, 6563, 128, 512, 3, 0, 0, 0),
}
SAMPLES = 4  # a token


def network(key: str, seed: int = 0) -> T3:
    """T3 with weights large enough to matter."""
    made = T3(CONFIGS[key], 256)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(made.named_parameters()):
            norm = ("norm" in name or ".ln_" in name) and name.endswith("weight")
            scale = 0.2 if parameter.dim() < 2 else 0.5 if name == "speech_emb.weight" else parameter[0].numel() ** -0.5
            loud = 20.0 if name.startswith(("cond_enc.spkr_enc", "cond_enc.emotion")) else 1.0  # or no voice is heard
            parameter.normal_(1.0 if norm else 0.0, scale * loud, generator=generator)
    return made.eval().requires_grad_(False)


class Letters:
    """A tokenizer of letters, with start and stop."""

    def __call__(self, text: str, language: str) -> np.ndarray:
        return np.array([255, *(ord(letter) % 250 + 1 for letter in text), 0], np.int64)


def named() -> Voices:
    """Voices of noise: "default", "second", and "short", whose prompt is shorter."""
    return Voices({}, {"default": voice(0), "second": voice(1), "short": voice(2, prompt=12)})


class Echo(Node):
    """Every token as a few samples of its own value, so that sound shows what was said, and in what order."""

    name = "s3gen"

    def offer(self, row):
        return None if row.chunks["tokens"] is None else Offer(("echo",), take=("tokens",))

    def launch(self, b):
        return {}

    def settle(self, b, out):
        chunks, sound = b.chunks("tokens"), []
        for i, chunk in enumerate(chunks):
            fresh = np.asarray(b.ins["tokens"].row(i))[chunk.fresh - chunk.start : chunk.stop - chunk.start]
            sound.append(np.repeat(fresh, SAMPLES).astype(np.float32))
        verdicts = np.where([chunk.final for chunk in chunks], Verdict.DONE, Verdict.WAIT)
        return Settled(verdicts, {"pcm": Packed(np.concatenate(sound), np.array(list(map(len, sound)), np.int64))})


class Synthesiser:
    """The smallest `models.chatterbox.graph.Synthesiser`."""

    def __init__(self):
        self.nodes, self.resources, self.modules = (Echo(),), {}, {}
        self.walks = {"whole": ("s3gen",), "stream": ("s3gen",)}
        tokens = Edge("t3.tokens", "s3gen.tokens", Ramp((3, 6), 12, context=4, lookahead=3), rate=25)
        self.edges = (tokens, Edge("s3gen.pcm", "client.audio", Each(), rate=24_000))

    def voice(self, audio):
        return voice(int(audio.samples.sum()) % 97)


def port(
    key: str = "chatterbox", options: Options | None = None, net: T3 | None = None, **deployment
) -> ChatterboxPort:
    """The port of a key on tiny weights."""
    small = {"max_text_tokens": 40, "max_new_tokens_limit": 60, "prefill_tokens": 256, **deployment}
    made = net or network(key)
    voices, options = named(), options or Options(numerics="invariant")
    return ChatterboxPort(VARIANTS[key], made, Letters(), voices, Synthesiser(), options, Deployment(**small))
