"""Tensors into modules: strict both ways, and without ever initialising what is about to be overwritten."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from serving.errors import SetupError

M = TypeVar("M", bound=nn.Module)
SHOWN = 8


def on_meta(make: Callable[[], M]) -> M:
    """The module without storage: shapes and names only, in milliseconds; `load_strict` fills it."""
    with torch.device("meta"):
        return make()


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, or of a folder: `model.safetensors`, or the shards its index names."""
    if path.is_file():
        return load_file(path)
    index = path / "model.safetensors.index.json"
    names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else []
    tensors: dict[str, Tensor] = {}
    for name in names or ["model.safetensors"]:
        if not (path / name).is_file():
            raise SetupError(f"{path} has no {name}", param="weights")
        tensors.update(load_file(path / name))
    return tensors


def read_json(path: Path, default: Any = None) -> Any:
    """A checkpoint's JSON file; without it the default, or `SetupError` where there is none."""
    if path.is_file():
        return json.loads(path.read_text())
    if default is None:
        raise SetupError(f"{path.parent} has no {path.name}", param="weights")
    return default


def load_strict(module: M, tensors: Mapping[str, Tensor], *, dtype: torch.dtype | None = None) -> M:
    """Put `tensors` into the module's parameters and persistent buffers, by name, without copying.

    Floating tensors are cast to `dtype` if it is given; otherwise dtypes must be the module's own. Tied
    parameters need one of their names. Raises `SetupError` naming what is missing, left over, or of the wrong
    shape or dtype, and buffers outside the state dict that are still on the meta device.
    """
    cast = {name: _cast(tensor, dtype) for name, tensor in tensors.items()}
    groups = _groups(module)
    problems = _problems(groups, cast, dtype)
    if problems:
        raise SetupError(f"the weights do not fit {type(module).__name__}: {'; '.join(problems)}", param="weights")
    for places in groups.values():
        _assign(places, next(cast[name] for name, _, _ in places if name in cast))
    filled = {name for places in groups.values() for name, _, _ in places}
    hollow = [name for name, buffer in module.named_buffers() if buffer.is_meta and name not in filled]
    if hollow:
        raise SetupError(f"{_some('buffers without a value', hollow)}: the port must compute them", param="weights")
    return module


Place = tuple[str, nn.Module, Tensor]


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def _assign(places: list[Place], value: Tensor) -> None:
    parameter = nn.Parameter(value, requires_grad=False) if isinstance(places[0][2], nn.Parameter) else None
    for name, owner, _ in places:
        leaf = name.rpartition(".")[2]
        if parameter is None:
            owner._buffers[leaf] = value
        else:
            owner._parameters[leaf] = parameter


def _places(module: nn.Module) -> Iterator[Place]:
    for prefix, owner in module.named_modules(remove_duplicate=False):
        held = owner._parameters | owner._buffers
        for leaf, value in held.items():
            if value is not None and leaf not in owner._non_persistent_buffers_set:
                yield f"{prefix}.{leaf}" if prefix else leaf, owner, value


def _groups(module: nn.Module) -> dict[int, list[Place]]:
    """Tied names together: one entry a tensor, whatever number of names it has."""
    groups: dict[int, list[Place]] = {}
    for place in _places(module):
        groups.setdefault(id(place[2]), []).append(place)
    return groups


def _problems(groups: dict[int, list[Place]], tensors: Mapping[str, Tensor], dtype: torch.dtype | None) -> list[str]:
    missing, wrong, torn = [], [], []
    for places in groups.values():
        given = [name for name, _, _ in places if name in tensors]
        if not given:
            missing.append(places[0][0])
        if any(not _same(tensors[name], tensors[given[0]]) for name in given):
            torn.append(" and ".join(given))
        wrong += [fault for name in given if (fault := _misfit(name, tensors[name], places[0][2], dtype))]
    known = {name for places in groups.values() for name, _, _ in places}
    left = [name for name in tensors if name not in known]
    lists = {"missing": missing, "left over": left, "tied but different": torn, "misfits": wrong}
    return [_some(what, names) for what, names in lists.items() if names]


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.shape == b.shape and (a.is_meta or torch.equal(a, b)))


def _misfit(name: str, tensor: Tensor, wanted: Tensor, dtype: torch.dtype | None) -> str | None:
    if tensor.shape != wanted.shape:
        return f"{name} is {list(tensor.shape)}, the module has {list(wanted.shape)}"
    expected = dtype if dtype is not None and wanted.is_floating_point() else wanted.dtype
    return None if tensor.dtype == expected else f"{name} is {tensor.dtype}, the module wants {expected}"


def _some(what: str, names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} {what}: {', '.join(names[:SHOWN])}{more}"
