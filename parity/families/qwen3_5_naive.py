"""A recorded network of Qwen3.5 without an engine: one row through its own cache and slots, in any chunks."""

from __future__ import annotations

import torch
from torch import Tensor

from models.components.layers.deltanet import Recurrence
from models.components.layers.spans import Spans
from models.qwen3_5.config import FULL, LINEAR, Qwen35Config, from_json
from models.qwen3_5.modules import Qwen35
from models.qwen3_5.weights import from_transformers
from models.weights.loading import load_strict, on_meta
from serving.resources import PagedKV, StateSlots
from serving.resources.tests.batches import batch

SLOT, OWNER, LENGTH = 1, "row", 512


def network(case) -> Qwen35:
    """The port's network with the weights of a case."""
    config = from_json(case.config["text"])
    return load_strict(on_meta(lambda: Qwen35(config)), from_transformers(case.recipe().build(), config)).eval()


class OneRow:
    """What the layers keep of one row."""

    def __init__(self, config: Qwen35Config, numerics: str = "fast") -> None:
        self.exact = numerics == "invariant"
        self.paged = {layer: place for place, layer in enumerate(config.of(FULL))}
        self.kv = PagedKV(
            layers=len(self.paged),
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            page_size=32,
            pages=LENGTH // 32,
            slots=1,
            max_len=LENGTH,
            numerics=numerics,
        )
        self.state = StateSlots(slots=1, state=config.delta.tables(config.of(LINEAR)))
        for resource in (self.kv, self.state):
            assert resource.reserve(OWNER, ("main",), LENGTH)
            resource.bind(SLOT, OWNER)

    def run(self, net: Qwen35, ids: Tensor, positions: Tensor) -> Tensor:
        """Logits [T, vocab] of the next tokens [T] at positions [3, T]."""
        b = batch([SLOT], [len(ids)])
        kv, recur = self.kv.plan(b, write=True), Recurrence(self.state.plan(b, write=True), Spans.of(b), self.exact)
        hidden = net(ids, positions, lambda layer, q, k, v: kv.attend(self.paged[layer], q, k, v), recur)
        return net.lm_head(hidden)


def logits(net: Qwen35, ids: Tensor, positions: Tensor | None = None, chunk: int | None = None) -> Tensor:
    """Logits [T, vocab] of a whole sequence, `chunk` tokens a step."""
    row, size = OneRow(net.config), chunk or len(ids)
    if positions is None:
        positions = torch.arange(len(ids)).expand(3, -1)
    parts = zip(ids.split(size), positions.split(size, 1), strict=True)
    with torch.inference_mode():
        return torch.cat([row.run(net, part, at) for part, at in parts])
