"""The cache of downloads and conversions: where it is, and how an entry appears in it whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from pydantic_settings import BaseSettings, SettingsConfigDict


class CacheSettings(BaseSettings):
    """Set by the environment variable TOOLKIT_CACHE."""

    model_config = SettingsConfigDict(env_prefix="TOOLKIT_", extra="ignore")

    cache: Path = Path("~/.cache/multimodal-toolkit")


def cache_dir(cache: Path | None = None) -> Path:
    """The cache folder, made if need be: the one given, else the setting."""
    folder = (cache or CacheSettings().cache).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def published(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, made by `make(path)` if it is not there yet.

    `make` writes a file or fills a folder at the path it gets, which is then renamed to `target`: a
    crash leaves nothing that looks finished, and of several processes one makes it while the others wait.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.exists():
            scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
            try:
                make(scratch / target.name)
                os.replace(scratch / target.name, target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    return target
