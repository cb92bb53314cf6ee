"""What models share out among requests, for the metrics: pages of KV, slots of state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
        return self.resource.free


def pools_of(loaded: Iterable[LoadedModel]) -> tuple[ModelPool, ...]:
    """The pools that count something; others, one entry a slot, say nothing that slots do not."""
    pools = []
    for model in loaded:
        graph = getattr(model.model, "graph", None)
        for name, resource in graph.resources.items() if graph else ():
            if resource.unit:
                pools.append(ModelPool(model.card.key, name, resource.unit, resource))
    return tuple(pools)
