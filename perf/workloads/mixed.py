"""Mixed workloads: requests of several kinds in one load, told apart in the report."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perf.workloads.base import Item, Workload
from serving.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Mixed(Workload):
    """A workload whose stream takes each part as often as its weight says, in a seeded order."""

    weights: Mapping[str, float] = field(default_factory=dict)

    def stream(self) -> Iterator[Item]:
        rng = random.Random(self.seed)
        parts = {name: [item for item in self.items if item.part == name] for name in self.weights}
        orders = {name: Workload(name, self.route, items, self.seed).stream() for name, items in parts.items()}
        names, weights = list(self.weights), list(self.weights.values())
        while True:
            yield next(orders[rng.choices(names, weights)[0]])


def mixed(parts: Sequence[tuple[str, Workload, float]], seed: int = 0) -> Mixed:
    """Name, workload and weight of each part; all of one route. Raises `BadRequest`."""
    routes = {workload.route for _, workload, _ in parts}
    if len(routes) != 1 or len({name for name, _, _ in parts}) < len(parts):
        raise BadRequest("The parts of a mixed workload have one route and different names.", param="workload")
    items = [replace(item, id=f"{name}/{item.id}", part=name) for name, work, _ in parts for item in work.items]
    total = sum(weight for _, _, weight in parts)
    weights = {name: weight / total for name, _, weight in parts}
    said = " + ".join(f"{100 * share:.0f} % {name}" for name, share in weights.items())
    return Mixed(said, routes.pop(), items, seed, weights)
