"""`parity.json`: what a run of the suite found. Written by the plugin, read by reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

VERSION = 1
State = Literal["pass", "fail", "stale", "portable", "refused", "not-run"]
STATES: tuple[State, ...] = ("pass", "portable", "fail", "stale", "refused", "not-run")
Rung = Literal["tap", "node", "end_to_end", "served", "real"]


class Base(BaseModel):
    # Infinities are real answers (the SNR of equal waves); JSON has no word for them.
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class Row(Base):
    """One comparison against the ledger."""

    test: str  # node id
    key: str
    case: str
    tap: str
    dtype: str
    device: str
    rung: Rung
    state: Literal["pass", "fail", "portable"]
    metric: str
    better: Literal["lower", "higher"]
    observed: float
    bound: float | None  # None: the ledger has no entry
    passing: float  # the tightest bound that would pass
    slack: float | None = None  # how many times looser than the observed distance the bound is
    entry: list[str] | None = None  # the ledger's table: key, case, tap pattern, dtype, device
    reason: str = ""  # the entry's
    hardware: str = ""
    date: str = ""
    recorded: str = ""  # when the case was recorded
    message: str = ""  # why it failed


class Test(Base):
    """One test of the suite."""

    id: str
    state: State
    reason: str = ""
    seconds: float = 0.0
    keys: list[str] = []
    controls: int = 0  # planted faults that it caught


class LedgerFindings(Base):
    """What the ledger itself has against it. `unused` is looked for on full runs only."""

    unused: list[list[str]] = []
    slack: list[list[str]] = []
    breaches: list[str] = []


class Report(Base):
    """A whole run."""

    version: int = VERSION
    created: str  # ISO 8601, UTC
    arguments: list[str]
    platform: dict[str, str]
    full: bool  # every test of the project was selected
    summary: dict[State, int]
    tests: list[Test]
    rows: list[Row]
    ledger: LedgerFindings = Field(default_factory=LedgerFindings)

    @classmethod
    def read(cls, path: Path) -> Report:
        """A report from its file; pydantic's `ValidationError` if it is not one."""
        return cls.model_validate_json(path.read_text())

    def write(self, path: Path) -> None:
        """Write the report; folders are made."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.model_dump_json(indent=1) + "\n")


def schema() -> dict[str, Any]:
    """The JSON schema of `parity.json`."""
    return Report.model_json_schema()
