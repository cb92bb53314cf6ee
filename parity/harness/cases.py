"""An oracle case: what the reference gave, in `oracles/<family>/cases/<case>/{manifest.json,*.safetensors}`.

The manifest names every tensor with its sha256, shape and dtype, in execution order, and says under which
flags, on which platform and by which recorder it was made. A case is loaded only if its bytes are those of
the manifest.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from parity.harness import numerics
from parity.harness.recipes import Recipe

SCHEMA = 1


class CaseError(Exception):
    """A case that is absent, damaged or of another schema."""


class CaseMissing(CaseError):
    """A file of the case is not on this machine: external bytes, or real weights."""


def tensor_hash(tensor: Tensor) -> str:
    """sha256 of the bytes in row-major order."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()


def file_hash(path: Path) -> str:
    """sha256 of a file, read in blocks."""
    total = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            total.update(block)
    return total.hexdigest()


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def sampled(tensor: Tensor, stride: int) -> Tensor:
    """Every `stride`-th element in row-major order, shape [ceil(n / stride)]; the tensor itself for stride 1."""
    return tensor if stride == 1 else tensor.reshape(-1)[::stride].contiguous()


@dataclass(frozen=True)
class TensorEntry:
    """One recorded tensor. With `stride` above 1 the file holds a sample, while shape and sha256 are the whole's."""

    file: str
    key: str  # name inside the file: equal tensors are stored once
    sha256: str
    shape: tuple[int, ...]
    dtype: str
    stride: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))


@dataclass(frozen=True)
class FileEntry:
    """A file of the case. External ones are kept outside the repository and found by their hash."""

    sha256: str
    size: int
    external: bool = False


@dataclass(frozen=True)
class Manifest:
    """Everything about a case but its bytes. `tensors` is in execution order."""

    family: str
    case: str
    version: str
    config: Mapping[str, Any]
    settable: Mapping[str, Any]
    platform: Mapping[str, str]
    references: Mapping[str, str]  # distribution -> version
    recorder: str  # hash of the recorder's syntax trees and env.toml
    seeds: Mapping[str, int] = field(default_factory=dict)
    recorded: Mapping[str, Any] = field(default_factory=dict)  # date, command, commit, dirty, python
    recipes: Mapping[str, Any] = field(default_factory=dict)
    externals: Mapping[str, FileEntry] = field(default_factory=dict)  # files given to the recorder, real weights say
    values: Mapping[str, Any] = field(default_factory=dict)  # texts, lists and numbers
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    tensors: Mapping[str, TensorEntry] = field(default_factory=dict)
    accepted: Mapping[str, Any] = field(default_factory=dict)  # date, reason, replaces
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Pretty and stable, one tensor a line, for readable differences."""
        plain = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        tensors = plain.pop("tensors")
        head = json.dumps(plain, indent=1, ensure_ascii=False)[:-2]
        rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in tensors.items())
        return f'{head},\n "tensors": {{\n{rows}\n }}\n}}\n'

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Parse a manifest; `CaseError` says what is wrong with it."""
        try:
            data = json.loads(path.read_text())
            if data["schema"] != SCHEMA:
                raise CaseError(f"{path}: schema {data['schema']}, this harness reads {SCHEMA}")
            data["files"] = {name: FileEntry(**row) for name, row in data["files"].items()}
            data["externals"] = {name: FileEntry(**row) for name, row in data["externals"].items()}
            data["tensors"] = {name: TensorEntry(**row) for name, row in data["tensors"].items()}
            return cls(**data)
        except (KeyError, TypeError, ValueError) as error:
            raise CaseError(f"{path}: not a manifest ({error})") from error


def _plain(value: Any) -> Any:
    if isinstance(value, TensorEntry | FileEntry):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


def content_version(manifest: Manifest) -> str:
    """Twelve hex digits over what was recorded, not over when or where: equal recordings have equal versions."""
    parts = {
        "tensors": {name: [row.sha256, row.stride] for name, row in manifest.tensors.items()},
        "values": _plain(manifest.values),
        "config": _plain(manifest.config),
        "recipes": {name: recipe["sha256"] for name, recipe in manifest.recipes.items()},
        "externals": {name: row.sha256 for name, row in manifest.externals.items()},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


@dataclass
class Case:
    """A loaded case. `case["name"]` is a tensor by its full name ("taps/conv1") or by the part after the
    slash.
    """

    folder: Path
    manifest: Manifest
    search: Sequence[Path] = ()  # where external files may lie

    def __post_init__(self) -> None:
        self._names = {name: name for name in self.manifest.tensors}
        for name in self.manifest.tensors:
            self._names.setdefault(name.partition("/")[2], name)

    @property
    def name(self) -> str:
        return f"{self.manifest.family}/{self.manifest.case}"

    @property
    def config(self) -> Mapping[str, Any]:
        return self.manifest.config

    @property
    def values(self) -> Mapping[str, Any]:
        return self.manifest.values

    def path(self, name: str) -> Path:
        """Where a file of the case lies; `CaseMissing` if it is external and not here."""
        entry = self.manifest.files[name]
        nested = Path(self.manifest.family) / self.manifest.case / name
        for candidate in [self.folder / name, *(root / nested for root in self.search)]:
            if candidate.exists():
                return candidate
        if entry.external:
            raise CaseMissing(f"{self.name}: {name} (sha256 {entry.sha256[:12]}, {entry.size} bytes) is not here")
        raise CaseError(f"{self.name}: {name} is in the manifest but not in {self.folder}")

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by its full name, in execution order, checked against the manifest."""
        held = {name: self._read(name) for name in self.manifest.files}
        return {name: self._checked(name, held[row.file]) for name, row in self.manifest.tensors.items()}

    def _read(self, name: str) -> dict[str, Tensor]:
        path = self.path(name)
        if file_hash(path) != self.manifest.files[name].sha256:
            raise CaseError(f"{self.name}: the bytes of {name} are not those of the manifest")
        return load_file(path)

    def _checked(self, name: str, held: Mapping[str, Tensor]) -> Tensor:
        row = self.manifest.tensors[name]
        tensor = held[row.key]
        whole = row.stride == 1
        if dtype_name(tensor.dtype) != row.dtype or (whole and tuple(tensor.shape) != row.shape):
            raise CaseError(f"{self.name}: {name} is {tensor.dtype} {list(tensor.shape)}, manifest says {row}")
        if whole and tensor_hash(tensor) != row.sha256:
            raise CaseError(f"{self.name}: the bytes of {name} are not those of the manifest")
        return tensor

    def full_name(self, name: str) -> str:
        """The name with its group; `CaseError` names the nearest where there is none."""
        if name not in self._names:
            close = difflib.get_close_matches(name, self._names, n=3, cutoff=0.4)
            raise CaseError(f"{self.name} has no {name!r}; nearest: {', '.join(close) or 'none'}")
        return self._names[name]

    def entry(self, name: str) -> TensorEntry:
        """The manifest's row of a tensor."""
        return self.manifest.tensors[self.full_name(name)]

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[self.full_name(name)]

    def group(self, group: str) -> dict[str, Tensor]:
        """The tensors of "inputs", "taps" or "outputs", without the group in their names, in execution
        order.
        """
        prefix = f"{group}/"
        return {n.removeprefix(prefix): t for n, t in self.tensors.items() if n.startswith(prefix)}

    def recipe(self, name: str = "weights") -> Recipe:
        """The recipe of a checkpoint; `.build()` gives the state dict that the reference ran with."""
        return Recipe.from_json(self.manifest.recipes[name])

    def external(self, name: str) -> Path:
        """A file that was given to the recorder, found by its hash; `CaseMissing` where it is not here."""
        entry = self.manifest.externals[name]
        for root in self.search:
            for path in sorted(p for p in root.rglob("*") if p.is_file() and p.stat().st_size == entry.size):
                if file_hash(path) == entry.sha256:
                    return path
        raise CaseMissing(f"{self.name}: no file with sha256 {entry.sha256[:12]} ({entry.size} bytes) for {name!r}")

    @property
    def device(self) -> str:
        return "cuda" if "gpu" in self.manifest.platform else "cpu"

    def elsewhere(self) -> dict[str, tuple[Any, Any]]:
        """Platform flags that differ from the recording's: name -> (recorded, live)."""
        return numerics.difference(self.manifest.platform, numerics.platform(self.device))


def load_case(root: Path, family: str, case: str, *, search: Sequence[Path] = ()) -> Case:
    """The accepted version of a case below an oracles folder. Tensors are read at first use."""
    folder = root / family / "cases" / case
    if not (folder / "manifest.json").exists():
        held = sorted(p.parent.name for p in (root / family / "cases").glob("*/manifest.json"))
        raise CaseError(f"no case {family}/{case} in {root}; there are: {', '.join(held) or 'none'}")
    return Case(folder, Manifest.read(folder / "manifest.json"), search)
