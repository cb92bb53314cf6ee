"""The matrix says the worst of what a parity.json says, and how near it came to its bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from parity.harness import schema
from parity.harness.schema import Report, Row
from reports.parity import Cell, matrix, newest
from serving.errors import SetupError


def row(key: str = "toy", rung: str = "tap", state: str = "pass", **fields) -> Row:
    values = {
        "test": "t", "key": key, "case": "c", "tap": "x", "dtype": "float32", "device": "cpu", "rung": rung,
        "state": state, "metric": "max_abs", "better": "lower", "observed": 1e-6, "bound": 4e-6, "passing": 1e-6,
    }  # fmt: skip
    return Row(**{**values, **fields})


def report(rows=(), tests=(), created: str = "2026-01-01T00:00:00+00:00") -> Report:
    summary = {"pass": len(tests)}
    return Report(
        created=created, arguments=[], platform={}, full=True, summary=summary, tests=list(tests), rows=list(rows)
    )


def test_a_cell_has_the_worst_state_and_the_nearest_bound():
    rows = [
        row(),
        row(observed=3e-6),
        row(metric="snr", better="higher", observed=80.0, bound=60.0),
        row(metric="snr", better="higher", observed=float("inf"), bound=60.0),
        row(rung="served", state="fail", observed=8e-6),
        row(rung="served", state="portable"),
        row(key="whisper", bound=0.0, observed=0.0),
    ]
    toy, whisper = matrix(report(rows))
    assert toy.cells == {"tap": Cell("pass", 4, 4, pytest.approx(0.75)), "served": Cell("fail", 1, 2, pytest.approx(2))}
    assert whisper.cells == {"tap": Cell("pass", 1, 1, None)}


def test_a_planted_fault_that_was_caught_is_no_failure():
    rows = [row(), row(state="fail", observed=9e-6)]
    (caught,) = matrix(report(rows, [schema.Test(id="t", state="pass", keys=["toy"], controls=1)]))
    assert (caught.cells["tap"], caught.controls) == (Cell("pass", 1, 1, 0.25), 1)
    (failed,) = matrix(report(rows, [schema.Test(id="t", state="fail", keys=["toy"])]))
    assert (failed.cells["tap"].state, failed.controls) == ("fail", 0)


def test_tests_without_comparisons_are_counted_too():
    tests = [
        schema.Test(id="a", state="pass", keys=["toy"]),
        schema.Test(id="b", state="refused", keys=["toy", "kokoro"]),
    ]
    kokoro, toy = matrix(report([row()], tests))
    assert (kokoro.key, kokoro.cells, kokoro.tests) == ("kokoro", {}, {"refused": 1})
    assert toy.tests == {"pass": 1, "refused": 1}


def test_the_newest_report_is_taken_and_another_file_is_named(tmp_path: Path):
    assert newest([]) is None
    for day in (2, 3, 1):
        report(created=f"2026-01-0{day}T00:00:00+00:00").write(tmp_path / f"{day}.json")
    found = newest(sorted(tmp_path.glob("*.json")))
    assert found is not None
    assert found.created.startswith("2026-01-03")
    (tmp_path / "4.json").write_text("{}")
    with pytest.raises(SetupError, match=r"4\.json"):
        newest(sorted(tmp_path.glob("*.json")))
