"""What the commands that measure Chatterbox put in the place of what they do not measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn

from models.chatterbox.conditioning import Conditionals
from models.chatterbox.config import START_TEXT, STOP_TEXT
from serving.core.contract import Audio, Batch, Edge, Node, Offer, Packed, Resource, Row, Settled, Verdict
from serving.core.streams import Whole

TEXT = 44  # tokens of a sentence, start and stop included


def sentences(count: int, seed: int = 2) -> list[np.ndarray]:
    """Random ids of so many sentences, framed as T3 reads them."""
    random = np.random.default_rng(seed)
    return [np.concatenate([[START_TEXT], random.integers(1, 250, TEXT - 2), [STOP_TEXT]]) for _ in range(count)]


class Numbered:
    """Stands for the tokenizer: a text is the number of a sentence."""

    def __init__(self, texts: Sequence[np.ndarray]) -> None:
        self.texts = texts

    def __call__(self, text: str, language: str) -> np.ndarray:
        return self.texts[int(text)]


class Mute(Node):
    """Stands for S3Gen: takes the speech tokens and makes no sound of them."""

    name = "mute"

    def offer(self, row: Row) -> Offer | None:
        return None if row.chunks["tokens"] is None else Offer(("mute",), take=("tokens",))

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        return {}

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        return Settled(np.full(b.n, Verdict.DONE), {"pcm": Packed(np.zeros(0, np.float32), np.zeros(b.n, np.int64))})


class Silent:
    """`models.chatterbox.graph.Synthesiser` without a sound."""

    def __init__(self) -> None:
        self.nodes: Sequence[Node] = (Mute(),)
        self.walks: Mapping[str, tuple[str, ...]] = {"whole": ("mute",), "stream": ("mute",)}
        self.edges = (Edge("t3.tokens", "mute.tokens", Whole()), Edge("mute.pcm", "client.audio", Whole()))
        self.resources: Mapping[str, Resource] = {}
        self.modules: Mapping[str, nn.Module] = {}

    def voice(self, audio: Audio) -> Conditionals:
        raise NotImplementedError
