"""Versions of cases: verify what is accepted, compare it with what was recorded anew, move the pointer."""

from __future__ import annotations

import dataclasses
import datetime
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from oracles.recorder.repository import changes
from oracles.recorder.run import RECORDINGS, Recorded, cases_of, families, hidden, record_into
from parity.harness import numerics
from parity.harness.cases import Case, Manifest
from parity.harness.compare import profile
from parity.harness.sources import recorder_hash


class NotAccepted(Exception):
    """The pointer was not moved; the message says what has to be put right first."""


def default_root() -> Path:
    """The folder `oracles` of the project that one stands in, or this package's."""
    here = Path.cwd() / "oracles"
    return here if here.is_dir() and families(here) else Path(__file__).resolve().parents[1]


def _chosen(folder: Path, case: str | None, inputs: Mapping[str, Path]) -> list[str]:
    """The case asked for, or all whose needs are given."""
    cases = cases_of(folder)
    if case is not None and case not in cases:
        raise KeyError(f"{folder.name} has no case {case!r}; there are: {', '.join(cases)}")
    return [case] if case else [name for name, files in lacking(folder, inputs).items() if not files]


def lacking(folder: Path, inputs: Mapping[str, Path]) -> dict[str, list[str]]:
    """For each case of a family, the files that it needs and was not given."""
    return {name: [n for n in row.get("needs", ()) if n not in inputs] for name, row in cases_of(folder).items()}


def _recordings(root: Path, family: str, case: str) -> Path:
    return hidden(root, RECORDINGS) / family / case


def record(
    family: str, case: str | None = None, *, root: Path | None = None, inputs: Mapping[str, Path] | None = None
) -> list[Recorded]:
    """Record a case, or every case whose external inputs are given; a new version each, accepted by nobody
    yet.

    `inputs` maps the names in a case's `needs` to files. Equal content gives an equal version.
    """
    root = root or default_root()
    done = []
    for name in _chosen(root / family, case, inputs or {}):
        home = _recordings(root, family, name)
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home) as scratch:
            fresh = record_into(root / family, name, Path(scratch) / "new", inputs or {})
            target = home / fresh.version
            shutil.rmtree(target, ignore_errors=True)
            fresh.folder.rename(target)
        done.append(dataclasses.replace(fresh, folder=target))
    return done


def _recorded(root: Path, family: str, case: str, version: str) -> Path:
    """The folder of a recorded version, of which the first digits are enough. Raises `NotAccepted`."""
    home = _recordings(root, family, case)
    found = sorted(home.glob(f"{version}*/manifest.json")) if version else []
    if len(found) != 1:
        held = ", ".join(sorted(path.name for path in home.glob("*"))) or "none"
        raise NotAccepted(f"no single recording {version!r} of {family}/{case}; there are: {held}")
    return found[0].parent


def _accepted(root: Path, family: str, case: str) -> Path:
    return root / family / "cases" / case


@dataclass(frozen=True)
class Verified:
    """A case recorded again: true if it gave the same bytes. `moved` names what did not."""

    family: str
    case: str
    moved: tuple[str, ...]
    platform: Mapping[str, tuple[str, str]]  # flags that differ from the recording's

    def __bool__(self) -> bool:
        return not self.moved


def verify(
    family: str, case: str | None = None, *, root: Path | None = None, inputs: Mapping[str, Path] | None = None
) -> list[Verified]:
    """Record the accepted cases again and compare bytes. Nothing is kept."""
    root = root or default_root()
    results = []
    for name in _chosen(root / family, case, inputs or {}):
        old = Manifest.read(_accepted(root, family, name) / "manifest.json")
        with tempfile.TemporaryDirectory() as scratch:
            new = record_into(root / family, name, Path(scratch), inputs or {}).manifest
        elsewhere = numerics.difference(old.platform, new.platform)
        results.append(Verified(family, name, tuple(_moved(old, new)), elsewhere))
    return results


def _moved(old: Manifest, new: Manifest) -> list[str]:
    parts: list[tuple[str, object, object]] = []
    for group in ("tensors", "files", "values"):
        before, after = getattr(old, group), getattr(new, group)
        names = dict.fromkeys([*before, *after])
        parts += [(f"{group}: {name}", before.get(name), after.get(name)) for name in names]
    parts += [("recipes", old.recipes, new.recipes), ("config", old.config, new.config)]
    return [name for name, before, after in parts if before != after]


@dataclass(frozen=True)
class Change:
    """How one tensor or value moved between two versions. `distance` is empty where they cannot be compared."""

    name: str
    kind: Literal["added", "removed", "changed"]
    distance: Mapping[str, float]


def diff(family: str, case: str, new: str, *, root: Path | None = None, old: str | None = None) -> list[Change]:
    """What moved from the accepted version, or `old`, to a recorded one, metric by metric."""
    root = root or default_root()
    folders = (
        _recorded(root, family, case, old) if old else _accepted(root, family, case),
        _recorded(root, family, case, new),
    )
    before, after = (Case(folder, Manifest.read(folder / "manifest.json")) for folder in folders)
    found = []
    for name in dict.fromkeys([*before.manifest.tensors, *after.manifest.tensors]):
        a, b = before.manifest.tensors.get(name), after.manifest.tensors.get(name)
        if a is None or b is None:
            found.append(Change(name, "added" if a is None else "removed", {}))
        elif (a.sha256, a.stride) != (b.sha256, b.stride):
            found.append(Change(name, "changed", profile(before[name], after[name])))
    values = dict.fromkeys([*before.values, *after.values])
    return found + [Change(n, "changed", {}) for n in values if before.values.get(n) != after.values.get(n)]


def accept(family: str, case: str, version: str, *, reason: str, root: Path | None = None) -> Manifest:
    """Make a recorded version the one that tests compare with. Raises `NotAccepted`.

    Refused for an empty reason, for a recording from uncommitted sources or from another recorder than the
    present one, and while the tree has uncommitted changes beside recorded cases.
    """
    root = root or default_root()
    source, target = _recorded(root, family, case, version), _accepted(root, family, case)
    manifest = Manifest.read(source / "manifest.json")
    _may_accept(root, family, manifest, reason)
    current = target / "manifest.json"
    replaces = Manifest.read(current).version if current.exists() else ""
    today = datetime.date.today().isoformat()
    manifest = dataclasses.replace(manifest, accepted={"date": today, "reason": reason, "replaces": replaces})
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    (target / "manifest.json").write_text(manifest.to_json())
    return manifest


def _may_accept(root: Path, family: str, manifest: Manifest, reason: str) -> None:
    if not reason.strip():
        raise NotAccepted("say why: --reason")
    if manifest.recorder != recorder_hash(root / family):
        raise NotAccepted("the recorder has changed since this was recorded: record it again")
    if manifest.recorded.get("dirty", True):
        raise NotAccepted("this was recorded from uncommitted sources: commit them and record it again")
    dirty = changes(root)
    if dirty is None:
        raise NotAccepted(f"{root} is in no git repository with a commit")
    if dirty:
        raise NotAccepted(f"uncommitted changes: {', '.join(dirty[:5])}")


@dataclass(frozen=True)
class Status:
    """One case: what is accepted, how old and how large it is, whether it still holds here, what awaits acceptance."""

    family: str
    case: str
    version: str | None  # None: never accepted
    age_days: int | None
    size: int  # bytes in the repository
    stale: bool
    elsewhere: Mapping[str, tuple[str, str]]
    recordings: tuple[str, ...]
    needs: tuple[str, ...]


def status(family: str | None = None, *, root: Path | None = None) -> list[Status]:
    """Every case of a family, or of all."""
    root = root or default_root()
    names = [family] if family else families(root)
    return [_status(root, name, case, row) for name in names for case, row in cases_of(root / name).items()]


def _status(root: Path, family: str, case: str, row: Mapping[str, Any]) -> Status:
    folder = _accepted(root, family, case)
    waiting = _recordings(root, family, case)
    versions = tuple(sorted(p.name for p in waiting.iterdir())) if waiting.exists() else ()
    needs = tuple(row.get("needs", ()))
    if not (folder / "manifest.json").exists():
        return Status(family, case, None, None, 0, False, {}, versions, needs)
    found = Case(folder, Manifest.read(folder / "manifest.json"))
    manifest = found.manifest
    recorded = datetime.date.fromisoformat(str(manifest.recorded["date"]))
    return Status(
        family,
        case,
        manifest.version,
        (datetime.date.today() - recorded).days,
        sum(path.stat().st_size for path in folder.iterdir()),
        manifest.recorder != recorder_hash(root / family),
        found.elsewhere(),
        tuple(v for v in versions if v != manifest.version),
        needs,
    )
