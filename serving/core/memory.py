"""What the loaded models hold of their devices' memory: told at start, and held against one budget for all of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from serving.core.runtime import ModelRun
from serving.errors import SetupError

log = logging.getLogger("toolkit.engine")


@dataclass(frozen=True, slots=True)
class Share:
    """What one model holds for one thing: "weights", "tables" and "buffers" of its nodes, or a pool's label."""

    model: str
    what: str
    nbytes: int


def split(models: Iterable[ModelRun]) -> list[Share]:
    """Who holds what, once every bucket has run. Weights that models share count once."""
    seen: set[int] = set()
    return [share for model in models for share in _shares(model, seen) if share.nbytes]


def _shares(model: ModelRun, seen: set[int]) -> Iterator[Share]:
    modules = model.loaded.model.modules.values()
    weights = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    nodes = list(model.nodes.values())
    tables = [value for node in nodes for value in vars(node.node).values() if isinstance(value, Tensor)]
    yield Share(model.key, "weights", _new(weights, seen))
    for label, resource in model.graph.resources.items():
        yield Share(model.key, label, resource.nbytes)
    yield Share(model.key, "tables", _new(tables, seen))
    yield Share(model.key, "buffers", sum(node.runner.nbytes for node in nodes))


def _new(tensors: Iterable[Tensor], seen: set[int]) -> int:
    """Bytes of the tensors' memory that nobody has counted."""
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def check(models: Iterable[ModelRun], budget: int | None) -> None:
    """Tell the split; `SetupError` if it passes the budget, naming the largest pool and how much of it fits."""
    models = list(models)
    shares = split(models)
    total = sum(share.nbytes for share in shares)
    for share in shares:
        log.info("memory: %s %s %s", share.model, share.what, _human(share.nbytes))
    log.info("memory: %s in all%s", _human(total), f" of {_human(budget)}" if budget else "")
    if budget is None or total <= budget:
        return
    pools = {(model.key, label): one for model in models for label, one in model.graph.resources.items() if one.unit}
    says = f"The models hold {_human(total)}, and memory_bytes is {_human(budget)}."
    if pools:
        (key, label), pool = max(pools.items(), key=lambda item: item[1].nbytes)
        fits = max(0, pool.capacity * (pool.nbytes - (total - budget)) // max(1, pool.nbytes))
        says += f" The largest pool is {label} of {key}, with {pool.capacity} {pool.unit}: at most {fits} fit."
    raise SetupError(says, param="memory_bytes")


def _human(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
