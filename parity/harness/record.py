"""Write a case: the pen that recorders hold. `oracles.recorder` runs them; nothing here knows a reference
or a port.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from parity.harness import numerics
from parity.harness.cases import (
    FileEntry,
    Manifest,
    TensorEntry,
    content_version,
    dtype_name,
    file_hash,
    sampled,
    tensor_hash,
)
from parity.harness.recipes import Recipe
from parity.harness.taps import Select, recording


@dataclass
class Recording:
    """What a recorder's `record(case)` is given. Groups are "inputs", "taps" and "outputs", a file each."""

    name: str
    config: dict[str, Any]
    externals: Mapping[str, Path] = field(default_factory=dict)
    settable: dict[str, Any] = field(default_factory=lambda: dict(numerics.EXACT))
    seeds: dict[str, int] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    recipes: dict[str, Recipe] = field(default_factory=dict)
    device: str = "cpu"
    _held: dict[str, tuple[Tensor, TensorEntry]] = field(default_factory=dict)

    def put(self, group: str, tensors: Mapping[str, Tensor], *, stride: int = 1) -> None:
        """Keep tensors. With `stride` every so-maniest element is kept, and the sha256 of the whole."""
        for name, tensor in tensors.items():
            full = f"{group}/{name}"
            if full in self._held:
                raise ValueError(f"{self.name}: {full} is recorded twice")
            whole = tensor.detach().cpu().contiguous()
            entry = TensorEntry(
                f"{group}.safetensors",
                full.partition("/")[2],
                tensor_hash(whole),
                tuple(whole.shape),
                dtype_name(whole.dtype),
                stride,
            )
            self._held[full] = (sampled(whole, stride).clone(), entry)

    def inputs(self, **tensors: Tensor) -> None:
        """What both sides are given; recorded noise belongs here."""
        self.put("inputs", tensors)

    def outputs(self, *, stride: int = 1, **tensors: Tensor) -> None:
        """What the reference gave in the end."""
        self.put("outputs", tensors, stride=stride)

    def recipe(self, recipe: Recipe, name: str = "weights") -> None:
        """The rule of a checkpoint; the port rebuilds it by `case.recipe(name).build()`."""
        self.recipes[name] = recipe
        self.seeds[name] = recipe.seed

    def external(self, name: str) -> Path:
        """A file handed to the recorder by the caller; its hash goes into the manifest."""
        if name not in self.externals:
            given = ", ".join(self.externals) or "none"
            raise KeyError(f"{self.name} needs the file {name!r} (--input {name}=PATH); given: {given}")
        return self.externals[name]

    @contextmanager
    def taps(
        self, module: nn.Module, *, prefix: str = "", select: Select | None = None, inputs: bool = True
    ) -> Iterator[None]:
        """Keep the outputs, and with `inputs` what each layer was given, of all calls inside the block."""
        with recording(module, prefix=prefix, select=select) as trace:
            yield
        for tap in trace.taps:
            self.put("taps", {**(tap.named_inputs() if inputs else {}), **tap.named()})

    def _files(self, folder: Path) -> tuple[dict[str, FileEntry], dict[str, TensorEntry]]:
        """Write each group's distinct tensors; the entries of equal ones point to one copy."""
        entries: dict[str, TensorEntry] = {}
        stored: dict[str, dict[str, Tensor]] = {}
        first: dict[tuple[Any, ...], str] = {}
        for full, (tensor, entry) in self._held.items():
            same = (entry.file, entry.sha256, entry.dtype, entry.shape, entry.stride)
            key = first.setdefault(same, entry.key)
            entries[full] = dataclasses.replace(entry, key=key)
            stored.setdefault(entry.file, {})[key] = tensor
        for name, tensors in stored.items():
            save_file(tensors, folder / name)
        sizes = {name: FileEntry(file_hash(folder / name), (folder / name).stat().st_size) for name in stored}
        return sizes, entries

    def write(self, folder: Path, family: str, **about: Any) -> Manifest:
        """Write tensors and manifest. `about`: references, recorder, recorded."""
        folder.mkdir(parents=True, exist_ok=True)
        files, tensors = self._files(folder)
        given = {n: FileEntry(file_hash(p), p.stat().st_size, True) for n, p in self.externals.items()}
        manifest = Manifest(
            family=family,
            case=self.name,
            version="",
            config=self.config,
            settable=self.settable,
            platform=numerics.platform(self.device),
            seeds=self.seeds,
            recipes={name: recipe.to_json() for name, recipe in self.recipes.items()},
            externals=given,
            values=self.values,
            files=files,
            tensors=tensors,
            **about,
        )
        manifest = dataclasses.replace(manifest, version=content_version(manifest))
        (folder / "manifest.json").write_text(manifest.to_json())
        return manifest
