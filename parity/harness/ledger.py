"""The ledger of tolerances: how far a tap may be from the reference, how far it is, on what, since when and
why.

An entry is a table `[key.case.tap.dtype.device]`; `*` in the tap stands for any characters, and the most
specific entry counts. `bound` holds on the platform that recorded the case, `portable` on any other. Never
loosen one to make a run pass: a regression is a finding.
"""

from __future__ import annotations

import datetime
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from parity.harness.compare import METRICS, metric

FIELDS = {"metric", "bound", "portable", "observed", "hardware", "date", "reason"}
SLACK = 10.0
HEADROOM = 2.0


class LedgerError(Exception):
    """The ledger breaks its own rules; the message lists every breach."""


class Place(NamedTuple):
    """Where a bound applies."""

    key: str
    case: str
    tap: str
    dtype: str
    device: str

    def header(self) -> str:
        """The TOML table header."""
        plain = re.compile(r"[A-Za-z0-9_-]+")
        return "[" + ".".join(p if plain.fullmatch(p) else json.dumps(p) for p in self) + "]"


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    place: Place
    metric: str = "max_abs"
    bound: float = 0.0
    portable: float | None = None
    observed: float | None = None
    hardware: str = ""
    date: str = ""
    reason: str = ""

    def gate(self, *, portable: bool) -> tuple[str, float]:
        """(metric, bound) to hold here. A count of differing elements means nothing elsewhere: max_abs stands in."""
        if not portable or self.portable is None:
            return self.metric, self.bound
        return ("max_abs" if self.metric == "exact" else self.metric), self.portable

    def slack(self) -> float:
        """How many times looser than the observed distance the bound is."""
        return 1.0 if self.observed is None else metric(self.metric).slack(self.observed, self.bound)

    def faults(self) -> list[str]:
        """What is wrong with this entry, as sentences."""
        if self.metric not in METRICS:
            return [f"metric {self.metric!r} is not one of {', '.join(sorted(METRICS))}"]
        passes = metric(self.metric).passes
        seen = math.nan if self.observed is None else self.observed
        checks = [
            (self.reason.strip(), "a bound needs a reason"),
            (self.hardware.strip(), "a bound needs the hardware that it was observed on"),
            (re.fullmatch(r"\d{4}-\d\d-\d\d", self.date), "date is not YYYY-MM-DD"),
            (passes(seen, self.bound), "a bound needs an observed distance that meets it"),
            (self._wider_elsewhere(), "the portable bound is tighter than the bound"),
        ]
        return [text for kept, text in checks if not kept]

    def _wider_elsewhere(self) -> bool:
        incomparable = self.portable is None or self.metric == "exact"
        return incomparable or metric(self.metric).passes(self.bound, self.portable or 0.0)

    def toml(self) -> str:
        """The entry as text."""
        rows = [f'metric = "{self.metric}"', f"bound = {number(self.bound)}"]
        rows += [f"portable = {number(self.portable)}"] if self.portable is not None else []
        rows += [f"observed = {number(self.observed)}"] if self.observed is not None else []
        rows += [f"hardware = {json.dumps(self.hardware)}", f"date = {self.date}"]
        return "\n".join([self.place.header(), *rows, f"reason = {json.dumps(self.reason)}"]) + "\n"


def number(value: float) -> str:
    """A float as TOML, shortest form that reads back the same."""
    return repr(float(value))


def matches(pattern: str, tap: str) -> bool:
    """Whether a ledger's tap pattern covers a tap. Only `*` is special: taps have brackets in their names."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), tap) is not None


def _entries(data: Mapping[str, Any]) -> Iterable[Entry]:
    for key, cases in data.items():
        for case, taps in cases.items():
            for tap, dtypes in taps.items():
                for dtype, devices in dtypes.items():
                    for device, row in devices.items():
                        yield _entry(Place(key, case, tap, dtype, device), row)


def _entry(place: Place, row: Mapping[str, Any]) -> Entry:
    if unknown := set(row) - FIELDS:
        raise LedgerError(f"{place.header()}: unknown fields {sorted(unknown)}; valid: {', '.join(sorted(FIELDS))}")
    return Entry(place, **{**row, "date": str(row.get("date", ""))})


@dataclass
class Ledger:
    """The entries of a file, and which of them a run has used."""

    path: Path
    entries: dict[Place, Entry] = field(default_factory=dict)
    used: set[Place] = field(default_factory=set)

    @classmethod
    def load(cls, path: Path) -> Ledger:
        """Read a ledger; an absent file is an empty one. `LedgerError` if it is not a ledger."""
        try:
            data = tomllib.loads(path.read_text()) if path.exists() else {}
            return cls(path, {entry.place: entry for entry in _entries(data)})
        except (tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
            raise LedgerError(f"{path}: {error}; tables are [key.case.tap.dtype.device]") from error

    def find(self, place: Place) -> Entry | None:
        """The entry for a place: the exact tap, or the longest pattern that matches it. Marks it as used."""
        if place in self.entries:
            self.used.add(place)
            return self.entries[place]
        fits = [p for p in self.entries if p._replace(tap=place.tap) == place and matches(p.tap, place.tap)]
        if not fits:
            return None
        best = max(fits, key=lambda p: len(p.tap.replace("*", "")))
        self.used.add(best)
        return self.entries[best]

    def lint(self) -> list[str]:
        """Every breach of the rules, one a line."""
        return [f"{e.place.header()}: {fault}" for e in self.entries.values() for fault in e.faults()]

    def slack(self, limit: float = SLACK) -> list[Entry]:
        """Entries whose bound is more than `limit` times looser than what was observed."""
        return [e for e in self.entries.values() if e.metric in METRICS and e.slack() > limit]

    def unused(self, keys: Iterable[str]) -> list[Place]:
        """Entries of these keys that no check asked for."""
        wanted = set(keys)
        return [place for place in self.entries if place.key in wanted and place not in self.used]

    def tighten(self, observed: Mapping[Place, Iterable[float]], hardware: str, *, portable: bool = False) -> int:
        """Pull bounds to what was observed, with `HEADROOM`, and write the file: the count of changed
        entries.

        A bound moves only if the new one is stricter. `observed` has the values of one run by entry.
        """
        text, changed = self.path.read_text(), 0
        for place, values in observed.items():
            entry = self.entries[place]
            by, bound = entry.gate(portable=portable)
            chosen = metric(by)
            worst = max(values) if chosen.better == "lower" else min(values)
            target = chosen.rounded(worst, HEADROOM)
            if portable and by == entry.metric and chosen.passes(target, entry.bound):
                target = entry.bound  # elsewhere is never held tighter than here
            if target == bound or not chosen.passes(target, bound) or (portable and entry.portable is None):
                continue
            name = "portable" if portable else "bound"
            fresh = {name: number(target)}
            if not portable:
                today = datetime.date.today().isoformat()
                fresh |= {"observed": number(worst), "hardware": json.dumps(hardware), "date": today}
            text, changed = _rewrite(text, place, fresh), changed + 1
        self.path.write_text(text)
        return changed


def _rewrite(text: str, place: Place, fresh: Mapping[str, str]) -> str:
    """The text with some fields of one table replaced; comments and the rest stay as they are."""
    lines, inside = text.splitlines(), False
    for index, line in enumerate(lines):
        if line.startswith("["):
            inside = _header(line) == place
        name = line.partition("=")[0].strip()
        if inside and name in fresh:
            lines[index] = f"{name} = {fresh[name]}"
    return "\n".join(lines) + "\n"


def _header(line: str) -> tuple[str, ...]:
    node, path = tomllib.loads(line), []
    while node:
        (name, node), *_ = node.items()
        path.append(name)
    return tuple(path)


def proposal(place: Place, by: str, observed: float, hardware: str) -> Entry:
    """An entry for a new tap, with headroom and without a reason: the lint refuses it until someone writes one."""
    bound = metric(by).rounded(observed, HEADROOM)
    return Entry(place, by, bound, None, observed, hardware, datetime.date.today().isoformat(), "")
