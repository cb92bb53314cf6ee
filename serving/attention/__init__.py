"""One attention op over paged keys and values, with the backends that compute it, and the dense op of encoders."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol

from torch import Tensor

from serving.attention import sdpa, tiles
from serving.attention.dense import dense
from serving.attention.layout import Layout, Ring
from serving.errors import SetupError, nearest

__all__ = ["BACKENDS", "Attend", "Layout", "Ring", "attend_with", "dense"]


class Attend(Protocol):
    """Attention of packed queries [T, H, D] over pools [pages, Hk, page_size, D], to [T, H, D]."""

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor: ...


def _triton() -> Attend:
    try:
        return import_module("serving.attention.triton").attend
    except ModuleNotFoundError as error:
        raise SetupError(
            'The attention backend "triton" needs its package: pip install "multimodal-toolkit[triton]"',
            param="attention",
        ) from error


BACKENDS: dict[str, Callable[[], Attend]] = {
    "sdpa": lambda: sdpa.attend,
    "tiles": lambda: tiles.attend,
    "triton": _triton,
    "flashinfer": lambda: import_module("serving.attention.flashinfer").FlashInfer(),
}


def attend_with(name: str | None, numerics: str) -> Attend:
    """The backend of a name; by default `tiles` where the numerics are invariant and `sdpa` elsewhere."""
    if name is None:
        name = "tiles" if numerics == "invariant" else "sdpa"
    if name not in BACKENDS:
        raise SetupError(f'No attention backend "{name}".{nearest(name, BACKENDS)}', param="attention")
    if numerics == "invariant" and name != "tiles":
        raise SetupError(f'The attention backend "{name}" is not invariant; "tiles" is.', param="attention")
    return BACKENDS[name]()
