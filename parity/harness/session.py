"""A run of the suite, seen from the process that reports: rows and states of all tests, the ledger's
findings.
"""

from __future__ import annotations

import datetime
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from parity.harness import numerics
from parity.harness.ledger import SLACK, Ledger, Place, proposal
from parity.harness.schema import STATES, LedgerFindings, Report, Row, Test

SELECTING = ("keyword", "markexpr", "lf", "failedfirst", "deselect", "stepwise", "ignore", "ignore_glob")


@dataclass
class Session:
    """Collects what reports carry; under xdist they come from the workers."""

    ledger: Ledger
    tests: dict[str, Test] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    deselected: int = 0
    full: bool = False
    findings: LedgerFindings = field(default_factory=LedgerFindings)

    def add(self, nodeid: str, parity: dict[str, Any], seconds: float) -> None:
        """The state and rows of one test."""
        about = {name: parity[name] for name in ("state", "reason", "keys", "controls")}
        self.tests[nodeid] = Test(id=nodeid, seconds=seconds, **about)
        self.rows += [Row(**row) for row in parity["rows"]]

    def counts(self) -> Counter[str]:
        """Tests by state."""
        return Counter(test.state for test in self.tests.values())

    def observed(self, *, portable: bool) -> dict[Place, list[float]]:
        """Passing distances by ledger entry, on the recording platform or elsewhere."""
        wanted = "portable" if portable else "pass"
        found: dict[Place, list[float]] = {}
        for row in self.rows:
            if row.state == wanted and row.entry:
                found.setdefault(Place(*row.entry), []).append(row.observed)
        return found

    def _unfinished(self) -> tuple[set[tuple[str, str]], list[str]]:
        """Cases and test ids whose entries may be unused for another reason than being dead."""
        open_tests = [t.id for t in self.tests.values() if t.state not in ("pass", "portable")]
        cases = {(row.key, row.case) for row in self.rows if row.test in open_tests}
        return cases, open_tests

    def unused(self) -> list[Place]:
        """Entries that nothing asked for, of keys that ran to their end."""
        self.ledger.used |= {Place(*row.entry) for row in self.rows if row.entry}
        cases, tests = self._unfinished()
        keys = {row.key for row in self.rows}
        return [
            place
            for place in self.ledger.unused(keys)
            if (place.key, place.case) not in cases and not any(place.key in test for test in tests)
        ]

    def conclude(self, config: pytest.Config) -> None:
        """Find what is wrong with the ledger, once all tests are in."""
        self.full = is_full(config, self.deselected)
        keys = {key for test in self.tests.values() for key in test.keys}
        slack = [list(e.place) for e in self.ledger.slack(SLACK) if e.place.key in keys]
        unused = [list(place) for place in self.unused()] if self.full else []
        self.findings = LedgerFindings(unused=unused, slack=slack, breaches=self.ledger.lint())

    def tighten(self) -> int:
        """Pull the ledger's bounds to what this run saw; the count of changed entries."""
        seen, elsewhere = self.observed(portable=False), self.observed(portable=True)
        devices = {place.device for place in [*seen, *elsewhere]}
        changed = 0
        for device in devices:
            where = numerics.hardware(device)
            for portable, values in ((False, seen), (True, elsewhere)):
                chosen = {place: v for place, v in values.items() if place.device == device}
                changed += self.ledger.tighten(chosen, where, portable=portable) if chosen else 0
        return changed

    def propose(self, path: Path) -> int:
        """Write an entry for every row without one; the count."""
        worst: dict[Place, Row] = {}
        for row in self.rows:
            place = Place(row.key, row.case, row.tap, row.dtype, row.device)
            if row.entry is None and (place not in worst or row.observed > worst[place].observed):
                worst[place] = row
        entries = [proposal(p, r.metric, r.observed, numerics.hardware(p.device)) for p, r in worst.items()]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(entry.toml() for entry in entries))
        return len(entries)

    def report(self) -> Report:
        """The whole run as data."""
        counts = self.counts()
        return Report(
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            arguments=sys.argv[1:],
            platform=numerics.platform("cuda" if any(row.device == "cuda" for row in self.rows) else "cpu"),
            full=self.full,
            summary={state: counts[state] for state in STATES},
            tests=list(self.tests.values()),
            rows=self.rows,
            ledger=self.findings,
        )

    def lines(self) -> Iterator[str]:
        """The terminal's section: every test that is neither pass nor fail, then the ledger's findings."""
        counts = self.counts()
        yield "parity: " + ", ".join(f"{counts[state]} {state}" for state in STATES)
        for test in self.tests.values():
            if test.state not in ("pass", "fail"):
                yield f"{test.state.upper()} {test.id}: {test.reason}"
        findings = (
            ("ledger breach", self.findings.breaches),
            ("unused ledger entry", _headers(self.findings.unused)),
            (f"slack, more than {SLACK:g} times the observed distance", _headers(self.findings.slack)),
        )
        yield from (f"{label}: {item}" for label, items in findings for item in items)


def _headers(places: Iterable[list[str]]) -> list[str]:
    return [Place(*place).header() for place in places]


def is_full(config: pytest.Config, deselected: int) -> bool:
    """Whether every test of the project was to run: folders or nothing as arguments, and no selection."""
    chosen = any(config.getoption(name, None) for name in SELECTING)
    whole = all(Path(argument.partition("::")[0]).is_dir() for argument in config.args)
    stopped = bool(getattr(config.option, "maxfail", 0))
    return whole and not chosen and not deselected and not stopped and not config.getoption("collectonly")
