"""The toy's graph, resources, walks and pieces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from models.toy import media
from models.toy.config import ToyConfig
from models.toy.modules import Networks
from models.toy.nodes import BOTH, COND, LM, Codec, Denoise, Listener
from serving.core.contract import Edge, Emit, Graph, Need, Options, Packed, Piece, Prefix, Steps, Task
from serving.core.streams import Each, Frames, Ramp, Whole
from serving.errors import BadRequest
from serving.resources import PagedKV, Sampler, StateSlots

EDGES = (
    Edge("client.prompt", "lm.prompt", Whole()),
    Edge("lm.token", "codec.tokens", Ramp((2, 4), Codec.MOST, context=Codec.BEFORE, lookahead=Codec.AFTER)),
    Edge("codec.pcm", "client.audio", Each(), rate=8000),
    Edge("denoise.picture", "client.image", Each()),
    Edge("client.audio_in", "listener.audio", Frames(4), limit=4096),
    Edge("listener.token", "client.tokens", Each()),
)
WALKS = {"speak": ("lm", "codec"), "paint": ("denoise",), "listen": ("listener",)}
MOST_PATCHES = 16


@dataclass(frozen=True, slots=True)
class Job:
    """A prepared request."""

    kind: str
    knobs: Any
    texts: tuple[np.ndarray, ...] = ()
    size: tuple[int, int] = (8, 8)
    audio: np.ndarray | None = None
    seed: int = 0


class Toy:
    """The port: `serving.core.contract.Model`."""

    def __init__(self, options: Options) -> None:
        self.c = c = ToyConfig()
        rows, sizes = options.rows, options.resources
        self.net = Networks(c)
        self.modules = {"toy": self.net}
        kv = PagedKV(
            layers=c.layers,
            kv_heads=c.heads,
            head_dim=c.head_dim,
            page_size=16,
            pages=int(sizes.get("kv", {}).get("pages", 2 * rows * c.max_tokens // 16)),
            slots=rows,
            max_len=c.max_tokens,
            lanes=BOTH,
            numerics=options.numerics,
        )
        sampler = Sampler(slots=rows, vocab=c.vocab)
        self.resources = {
            "kv": kv,
            "sampler": sampler,
            "filter": StateSlots(slots=rows, state={"y": ((), torch.float32)}, rollback=True),
            "memory": StateSlots(slots=rows, state={"h": ((c.memory,), torch.float32)}, rollback=True),
        }
        budget = float(options.model.get("budget", 128))
        nodes = (
            LM(c, self.net, sampler, rows, budget, str(options.model.get("preempt", "offload"))),
            Codec(c, self.net),
            Denoise(c, self.net, rows, MOST_PATCHES),
            Listener(c, self.net),
        )
        self.graph = Graph({node.name: node for node in nodes}, EDGES, self.resources, WALKS)

    def prepare(self, task: Task) -> Job:
        """Text to ids, or a clip to samples."""
        k = task.knobs
        if task.kind == "generate":
            audio = task.inputs.get("audio")
            return Job("listen", k, audio=None if audio is None else audio.samples.mean(0))
        text = str(task.inputs["text"])
        if not text.strip():
            raise BadRequest("The text is empty.", param="input")
        if task.kind == "image":
            width, height = map(int, k.size.split("x"))
            patches = width * height // self.c.patch**2
            knobs = SimpleNamespace(**k.model_dump(), patches=patches)
            return Job("paint", knobs, (media.ids(text, self.c),), (width, height), seed=task.seed)
        groups = media.sentences(text) if k.sentence_chunking else [text]
        texts = tuple(media.ids(group, self.c, k.voice) for group in groups)
        longest = max(map(len, texts))
        if longest + k.max_new_tokens > self.c.max_tokens:
            raise BadRequest(
                f"A sentence of {longest} tokens and max_new_tokens {k.max_new_tokens} pass the model's "
                f"{self.c.max_tokens}: use at most {self.c.max_tokens - longest}.",
                param="max_new_tokens",
            )
        return Job("speak", k, texts)

    def in_flight(self, job: Job) -> int:
        return 2 if job.kind == "speak" else 1

    def pieces(self, job: Job) -> Steps:
        """A sentence a piece; a picture and a listener are one."""
        if job.kind == "speak":
            yield from self._sentences(job)
        elif job.kind == "paint":
            start = media.noise(job.seed, job.knobs.patches, self.c)
            inputs = {"denoise.noise": Packed.one(start), "denoise.text": Packed.one(job.texts[0])}
            yield Piece("paint", inputs, job.knobs)
        else:
            inputs = {} if job.audio is None else {"listener.audio": Packed.one(job.audio)}
            yield Piece("listen", inputs, job.knobs, keep=("memory",))
        yield Emit("info", Packed.one([{"pieces": max(1, len(job.texts))}]))

    def _sentences(self, job: Job) -> Iterator[Piece]:
        lanes = BOTH if job.knobs.cfg_weight > 0 else COND
        for text in job.texts:
            most = job.knobs.max_new_tokens
            need = Need(len(text) + most, lanes, len(text) + min(most, 8))
            blank = np.zeros_like(text)  # what the lane without a prompt reads
            prefix = Prefix("lm", dict(zip(lanes, (text, blank), strict=False)), ("prompt",), grows="token")
            yield Piece("speak", {"lm.prompt": Packed.one(text)}, job.knobs, needs={"kv": need}, prefix=prefix)

    def present(self, port: str, items: Packed) -> Any:
        """Samples stay samples, patches become pixels."""
        if port == "image":
            x = items.values[0]
            side = {4: (8, 8), 8: (16, 8), 16: (16, 16)}[len(x)]
            return media.pixels(x, *side, self.c)
        return items.values[0] if port == "info" else items.values
