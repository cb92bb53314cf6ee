"""docs/benchmarks.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from perf.metrics.table import table

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def test_the_page_holds_the_table_of_metrics():
    assert table() in PAGE.read_text(encoding="utf-8"), "run: python -m perf.metrics.table"


def test_each_line_of_the_table_is_whole():
    lines = table().splitlines()
    assert len(lines) >= 22
    assert {line.count(" | ") for line in lines} == {5}
    assert all(cell.strip() for line in lines for cell in line.strip("|").split("|"))
