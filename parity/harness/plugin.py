"""The pytest plugin: its options, and the states of parity tests in every report. Fixtures are in
`fixtures`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from parity.harness import hooks
from parity.harness.cases import CaseMissing
from parity.harness.checks import Record
from parity.harness.fixtures import (  # noqa: F401 - a plugin's fixtures are the names in its module
    RECORD,
    SESSION,
    check,
    ledger,
    oracle,
    parity_device,
    parity_loaded,
    parity_record,
    parity_servers,
    port,
    served,
    weights,
)
from parity.harness.ledger import Ledger
from parity.harness.numerics import Refused
from parity.harness.session import Session
from parity.harness.states import NotRun, Stale

LETTERS = {"portable": "p", "stale": "S", "refused": "R", "not-run": "n"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("parity", "comparison of models with recorded references")
    add = group.addoption
    add("--parity-report", metavar="PATH", type=Path, help="write parity.json here")
    add("--parity-bisect", action="store_true", help="on a failure, find the layer that is wrong")
    add(
        "--parity-tighten",
        action="store_true",
        help="pull the ledger's bounds to what this run sees; never looser",
    )
    add("--parity-propose", metavar="PATH", type=Path, help="write ledger entries for taps that have none")
    add(
        "--parity-weights",
        metavar="DIR",
        type=Path,
        help="real weights (or TOOLKIT_WEIGHTS)",
    )
    add("--parity-device", default="cpu", help="device that suites put ports on (default: cpu)")
    add("--parity-warn-unused", action="store_true", help="unused ledger entries do not fail a full run")
    parser.addini("parity_oracles", "folder of the recorded cases", default="oracles")
    parser.addini("parity_ledger", "the ledger of tolerances", default="parity/tolerances.toml")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hooks)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SESSION] = Session(Ledger.load(config.rootpath / config.getini("parity_ledger")))


def _state(report: pytest.TestReport, error: BaseException | None, record: Record) -> tuple[str, str]:
    """(state, reason) of a test that has ended."""
    if isinstance(error, NotRun | CaseMissing):
        return "not-run", str(error)
    if isinstance(error, Stale | Refused):
        return type(error).__name__.lower(), str(error)
    if report.failed:
        return "fail", report.longreprtext.splitlines()[-1] if report.longreprtext else ""
    if record.elsewhere:
        moved = ", ".join(f"{name} {a} -> {b}" for name, (a, b) in record.elsewhere.items())
        return "portable", f"recorded elsewhere: {moved}"
    return "pass", ""


def _as_skip(item: pytest.Item, report: pytest.TestReport, reason: str) -> None:
    """A missing file is found while the test runs: not a failure."""
    report.outcome = "skipped"
    report.longrepr = (str(item.path), item.location[1] or 0, reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    record = item.stash.get(RECORD, None)
    ended = report.when == "call" or (report.when == "setup" and not report.passed)
    if record is None or not ended or (report.skipped and not isinstance(call.excinfo and call.excinfo.value, NotRun)):
        return report
    state, reason = _state(report, call.excinfo.value if call.excinfo else None, record)
    if state == "not-run":
        _as_skip(item, report, reason)
    item.user_properties.append(("parity_state", state))
    item.user_properties.append(("parity_reason", reason))
    parity = {"state": state, "reason": reason, "rows": record.rows, "keys": record.keys}
    report.parity = {**parity, "controls": record.controls}  # type: ignore[attr-defined]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    state = getattr(report, "parity", {}).get("state", "")
    return (state.replace("-", " "), LETTERS[state], state.upper()) if state in LETTERS else None


class Collector:
    """Gathers reports in the process that shows them; workers of xdist have none."""

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.session = config, config.stash[SESSION]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if parity := getattr(report, "parity", None):
            self.session.add(report.nodeid, parity, report.duration)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.session.deselected += getattr(node, "workeroutput", {}).get("parity_deselected", 0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self.session.tests:
            return
        self.session.conclude(self.config)
        findings = self.session.findings
        dead = findings.unused and not self.config.getoption("parity_warn_unused")
        if (dead or (self.session.full and findings.breaches)) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.session.tests:
            return
        terminalreporter.section("parity")
        for line in [*self.session.lines(), *self._written()]:
            terminalreporter.line(line)

    def _written(self) -> Iterator[str]:
        if path := self.config.getoption("parity_report"):
            self.session.report().write(path)
            yield f"wrote {path}"
        if path := self.config.getoption("parity_propose"):
            yield f"wrote {self.session.propose(path)} proposed entries to {path}: each needs a reason"
        if self.config.getoption("parity_tighten"):
            yield f"tightened {self.session.tighten()} entries of {self.session.ledger.path}"


def pytest_deselected(items: list[pytest.Item]) -> None:
    if items:
        config = items[0].config
        config.stash[SESSION].deselected += len(items)
        if hasattr(config, "workeroutput"):
            config.workeroutput["parity_deselected"] = config.stash[SESSION].deselected


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Collector(session.config), "parity-collector")
