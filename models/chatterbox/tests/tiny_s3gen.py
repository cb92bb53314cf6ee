"""S3Gen of a few hundred thousand random parameters, and its nodes in an engine behind a source of tokens."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from models.chatterbox.s3gen import S3Gen
from models.chatterbox.s3gen_config import (
    SAMPLE_RATE,
    EncoderConfig,
    EstimatorConfig,
    S3GenConfig,
    SpeakerConfig,
    TokenizerConfig,
    VocoderConfig,
)
from models.chatterbox.s3gen_nodes import FlowNode, Mark, VocoderNode
from models.chatterbox.stream import WHOLE, StreamPlan, edges
from parity.harness import Spec, recipe_for
from serving.core.contract import (
    Batch,
    Card,
    Graph,
    LoadedModel,
    Node,
    Offer,
    Options,
    Packed,
    Piece,
    Row,
    Settled,
    Task,
    Verdict,
)
from serving.core.engine import Engine, EngineSettings

CONFIG = S3GenConfig(
    encoder=EncoderConfig(64, 4, 96, 2),
    estimator=EstimatorConfig(32, 2, 16, 2, 2),
    vocoder=VocoderConfig(channels=64, f0_channels=32),
    tokenizer=TokenizerConfig(128, 128, 2, 2),
    speaker=SpeakerConfig(8, 16),
)
TURBO = replace(CONFIG, estimator=EstimatorConfig(32, 2, 16, 2, 2, meanflow=True))
SHORT = StreamPlan(first=6, chunk=8, growth=2, most=16, context=8)
SPECIAL = {  # where unit gain would clip, divide by nothing, or let rounding decide the phase of the sines
    "*.alpha": (1.0, 0.3),
    "mel2wav.f0_predictor.classifier.bias": (150.0, 0.0),
    "mel2wav.f0_predictor.classifier.weight": (0.0, 0.05),
    "mel2wav.*convs2.*.weight": (0.0, 0.01),
    "mel2wav.conv_post.weight": (0.0, 0.02),
    "mel2wav.conv_post.bias": (-2.0, 0.5),
}
numbers = itertools.count()


def network(seed: int = 1, config: S3GenConfig = CONFIG) -> S3Gen:
    """Random weights of unit gain, voiced speech."""
    net = S3Gen(config)
    special = {
        name: Spec(tuple(value.shape), "float32", "uniform", *pair)
        for name, value in net.state_dict().items()
        for pattern, pair in SPECIAL.items()
        if fnmatch(name, pattern)
    }
    net.load_state_dict(recipe_for(net, seed, overrides=special).build())
    return net.eval().requires_grad_(False)


@dataclass(frozen=True, eq=False)
class Spoken:
    """What a row's knobs are: a voice, the request's fields, a seed, and the tokens that the source will give."""

    voice: Any
    seed: int
    tokens: np.ndarray
    knobs: Any = field(default_factory=lambda: SimpleNamespace(n_cfm_timesteps=3, watermark=False))


def voice(prompt: int = 10, seed: int = 0) -> Any:
    """Random conditioning of so many prompt tokens."""
    words = np.random.Philox(seed)
    gen = SimpleNamespace(
        prompt_token=torch.from_numpy((words.random_raw(prompt) % 6561).astype(np.int64))[None],
        prompt_feat=Spec((1, 2 * prompt, 80), scale=1.5).draw(words),
        embedding=Spec((1, 192)).draw(words),
    )
    return SimpleNamespace(gen=gen)


def utterance(count: int, seed: int = 0, **fields: Any) -> Spoken:
    """So many random tokens in a random voice."""
    tokens = (np.random.Philox(seed + 50).random_raw(count) % 6561).astype(np.int64)
    return Spoken(fields.pop("voice", None) or voice(8 + seed % 3, seed), seed, tokens, **fields)


class Source(Node):
    """Stands for T3: one token a step, then a step that says no more than that it is the end."""

    name = "t3"

    def begin(self, row: Row) -> None:
        row.state = 0

    def offer(self, row: Row) -> Offer | None:
        return Offer(("t3",))

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        return {}

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        said = [row.knobs.tokens[row.state : row.state + 1] for row in b.rows]
        for row in b.rows:
            row.state += 1
        done = [row.state > len(row.knobs.tokens) for row in b.rows]
        lengths = np.array([len(one) for one in said], np.int64)
        return Settled(Verdict.until(done), {"tokens": Packed(np.concatenate(said), lengths)})


class NoKnobs(BaseModel):
    pass


CARD = Card("s3gen_test", "test", "test", {"speak": NoKnobs}, "Apache-2.0", "recipe", sample_rate=SAMPLE_RATE)


class Port:
    """The nodes as a model: `serving.core.contract.Model`."""

    def __init__(
        self, net: S3Gen, plan: StreamPlan, rows: int, bucket: int, mark: Mark | None, ladder: Sequence[int]
    ) -> None:
        meanflow = net.config.estimator.meanflow
        flow = FlowNode(net.flow, plan, rows, bucket, net.config.speaker.embedding, ladder)
        vocoder = VocoderNode(net.mel2wav, meanflow, plan, 8, rows, mark)
        nodes: Sequence[Node] = (Source(), flow, vocoder)
        walks = {"speak": tuple(node.name for node in nodes)}
        self.graph = Graph({node.name: node for node in nodes}, edges(plan), {}, walks)
        self.modules = {"flow": net.flow, "vocoder": net.mel2wav}

    def prepare(self, task: Task) -> Spoken:
        return task.inputs["spoken"]

    def in_flight(self, job: Spoken) -> int:
        return 1

    def pieces(self, job: Spoken) -> Any:
        yield Piece("speak", {}, job)

    def present(self, port: str, items: Packed) -> np.ndarray:
        return np.asarray(items.values, np.float32)


class Bench:
    """An engine over the nodes."""

    def __init__(
        self,
        net: S3Gen,
        plan: StreamPlan = WHOLE,
        *,
        rows: int = 4,
        bucket: int = 1,
        mark: Mark | None = None,
        ladder: Sequence[int] = (),
        numerics: str = "fast",
        capture: str = "eager",
        lanes: int = 1,
    ) -> None:
        self.port = Port(net, plan, rows, bucket, mark, ladder)
        options = Options(rows=8, numerics=numerics, capture=capture)
        self.engine = Engine([LoadedModel(CARD, options, self.port)], EngineSettings(lanes=lanes))

    async def __aenter__(self) -> Bench:
        await self.engine.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.stop()

    async def chunks(self, spoken: Spoken) -> list[np.ndarray]:
        """The sound of one utterance, as it came."""
        task = Task("speak", {"spoken": spoken}, NoKnobs())
        handle = await self.engine.submit(CARD.key, task, request_id=f"s{next(numbers)}", seed=1)
        return [output.value async for output in handle]

    async def speak(self, spoken: Spoken) -> np.ndarray:
        found = await self.chunks(spoken)
        return np.concatenate(found) if found else np.zeros(0, np.float32)

    async def together(self, spoken: Sequence[Spoken]) -> list[np.ndarray]:
        return list(await asyncio.gather(*(self.speak(one) for one in spoken)))
