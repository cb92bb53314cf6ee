"""What models share out among requests, for the metrics: pages of KV, slots of state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from serving.core.contract import LoadedModel, Resource


@dataclass(frozen=True, slots=True)
class ModelPool:
    """A resource under its label in the model's graph."""

    model: str
    name: str
    unit: str
    resource: Resource

    @property
    def capacity(self) -> int:
        return self.resource.capacity

    @property
    def free(self) -> int:
        shared: Any = getattr(self.resource, "pages", self.resource)
        return int(shared.free)


def pools_of(loaded: Iterable[LoadedModel]) -> tuple[ModelPool, ...]:
    """The pools that know how much of them is free; others, one entry a slot, say nothing that slots do not."""
    pools = []
    for model in loaded:
        graph = getattr(model.model, "graph", None)
        for name, resource in graph.resources.items() if graph else ():
            if hasattr(resource, "pages"):
                pools.append(ModelPool(model.card.key, name, "pages", resource))
            elif hasattr(resource, "free"):
                pools.append(ModelPool(model.card.key, name, "slots", resource))
    return tuple(pools)
