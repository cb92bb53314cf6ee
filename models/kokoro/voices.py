"""Voices: style tables by name, and blends of them. A name is looked up in a list, never opened as a path."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.weights.cache import cache_dir, published
from serving.errors import BadRequest, SetupError, nearest

ROWS, WIDTH = 510, 256  # a style for each number of phonemes: half says how a voice sounds, half how it speaks
NAME = re.compile(r"[a-z]{2}_[a-z0-9]+")
TERM = re.compile(r"\s*([A-Za-z0-9_]+)\s*(?:\(\s*(\d+(?:\.\d+)?)\s*\))?\s*")
NPM = ("kokoro-js", "1.2.1", "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860")

Load = Callable[[], np.ndarray]


class Voices:
    """Tables [510, 256] float32, loaded when first used."""

    def __init__(self, loaders: Mapping[str, Load]) -> None:
        self._loaders = dict(sorted(loaders.items()))
        self._tables: dict[str, Tensor] = {}

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self._loaders)

    def table(self, spec: str) -> Tensor:
        """The table of a voice or of a blend "a+b", "a(2)+b(1)": the weighted mean. Raises `BadRequest`."""
        terms = [self._term(part, spec) for part in spec.split("+")]
        total = sum(weight for _, weight in terms)
        if total <= 0:
            raise BadRequest(
                f'The weights of the blend "{spec}" add up to 0: give one a weight above 0.', param="voice"
            )
        if len(terms) == 1:
            return self._table(terms[0][0])
        return torch.stack([self._table(name) * (weight / total) for name, weight in terms]).sum(0)

    def languages(self, spec: str) -> list[str]:
        """The letters of the languages of a blend's voices, in its order."""
        return [self._term(part, spec)[0][0] for part in spec.split("+")]

    def _term(self, part: str, spec: str) -> tuple[str, float]:
        found = TERM.fullmatch(part)
        if found is None:
            rule = 'a name, or names joined by "+", each with a weight in brackets if need be: "af_bella(2)+af_sky"'
            raise BadRequest(f'The voice "{spec}" is not {rule}.{nearest(spec, self.names)}', param="voice")
        if found[1] not in self._loaders:
            raise BadRequest(f'No voice "{found[1]}".{nearest(found[1], self.names)}', param="voice")
        return found[1], float(found[2] or 1)

    def _table(self, name: str) -> Tensor:
        if name not in self._tables:
            table = self._loaders[name]()
            if table.size != ROWS * WIDTH or table.dtype != np.float32:
                raise SetupError(f"the voice {name} is {table.dtype} {list(table.shape)}, not float32 [510, 256]")
            self._tables[name] = torch.from_numpy(table.reshape(ROWS, WIDTH).copy())
        return self._tables[name]


def from_folder(folder: Path) -> dict[str, Load]:
    """Voices of a folder: NAME.bin holds raw float32, NAME.pt a saved tensor; other names are passed over."""
    if not folder.is_dir():
        raise SetupError(f"the voices folder {folder} is not a folder", param="voices")
    readers: dict[str, Callable[[Path], np.ndarray]] = {".bin": _raw, ".pt": _saved}
    return {
        path.stem: partial(readers[path.suffix], path)
        for path in sorted(folder.iterdir())
        if path.suffix in readers and NAME.fullmatch(path.stem)
    }


def from_npz(path: Path) -> dict[str, Load]:
    """Voices of an archive of arrays."""
    with np.load(path) as archive:
        names = archive.files
    return {name: partial(_member, path, name) for name in names}


def from_npm(cache: Path | None = None) -> dict[str, Load]:
    """The 54 voices of the npm package `kokoro-js`, fetched once with `npm pack`; {} where npm is not installed."""
    name, version, _ = NPM
    folder = cache_dir(cache) / "npm" / f"{name}-{version}"
    if not folder.exists() and shutil.which("npm") is None:
        return {}
    return from_folder(published(folder, _unpack))


def _raw(path: Path) -> np.ndarray:
    return np.fromfile(path, np.float32)


def _saved(path: Path) -> np.ndarray:
    return torch.load(path, map_location="cpu", weights_only=True).float().numpy()


def _member(path: Path, name: str) -> np.ndarray:
    with np.load(path) as archive:
        return archive[name]


def _unpack(target: Path) -> None:
    """Fetch the package, check it, and keep its voices. No script of the package runs."""
    name, version, sha256 = NPM
    command = ["npm", "pack", f"{name}@{version}", "--json", "--ignore-scripts"]
    done = subprocess.run(command, cwd=target.parent, capture_output=True, text=True)
    if done.returncode:
        raise SetupError(f"npm could not fetch {name}@{version}: {done.stderr[-500:]}", param="voices")
    archive = target.parent / json.loads(done.stdout)[0]["filename"]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != sha256:
        raise SetupError(f"{archive.name} has sha256 {digest}, but {sha256} is pinned", param="voices")
    target.mkdir()
    with tarfile.open(archive) as held:
        for member in held.getmembers():
            path = Path(member.name)
            if member.isfile() and path.parent.as_posix() == "package/voices" and path.suffix == ".bin":
                content = held.extractfile(member)
                assert content is not None
                (target / path.name).write_bytes(content.read())
