"""Foreign weight files become safetensors once, in the cache."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from models.weights.cache import cache_dir, published
from models.weights.progress import byte_bar


def converted(name: str, tensors: Iterable[tuple[str, Tensor]], size: int, cache: Path | None = None) -> Path:
    """A safetensors file of `tensors` (names and values, perhaps lazy; `size` bytes in all).

    `name` must say all that the result depends on: the source's hash and the version of the conversion.
    """

    def make(path: Path) -> None:
        save_file(_collect(name, tensors, size), path)

    return published(cache_dir(cache) / "converted" / f"{name}.safetensors", make)


def _collect(name: str, tensors: Iterable[tuple[str, Tensor]], size: int) -> dict[str, Tensor]:
    kept: dict[str, Tensor] = {}
    done = 0
    with byte_bar(f"Converting {name}", size) as update:
        for key, tensor in tensors:
            if key in kept:
                raise ValueError(f"{name}: two tensors are named {key}")
            kept[key] = tensor.contiguous()
            done += tensor.nbytes
            update(done, None)
        update(size, None)
    return kept
