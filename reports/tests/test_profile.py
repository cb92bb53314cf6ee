"""The page and the table of a profile say what the profile says, and the page needs nothing else."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from perf.tests.test_profile import made
from reports.profile import facts, flame, lines, table, timeline, write
from reports.tests.test_reports import Outside


def test_the_table_fits_a_terminal_and_has_every_number():
    console = Console(width=80, file=StringIO())
    console.print(table(made()))
    shown = console.file.getvalue()
    assert "…" not in shown
    for text in ("2.50 s", "62.5 %", "833 ms", "2.67", "10.0 %", "750 ms", "375 ms", "codec"):
        assert text in shown
    assert lines(made())[-1][:5] == ["no step", "", "", "1.00 s", "25.0 %"]
    assert ("Engine thread, CPU", "500 ms (12.5 % of wall)") in facts(made())
    assert ("Process, CPU", "6.00 s (1.50 cores)") in facts(made())


def test_blocks_of_the_flame_are_as_wide_as_their_time():
    blocks = flame(made())
    assert {(b.name, b.level): (b.left, b.width) for b in blocks} == {
        ("model", 0): (0.0, 100.0),
        ("loop", 1): (0.0, 62.5),
        ("size 1", 2): (0.0, 12.5),
        ("size 4", 2): (12.5, 50.0),
        ("codec", 1): (62.5, 12.5),
        ("size 2", 2): (62.5, 12.5),
        ("idle", 1): (75.0, 25.0),
    }
    drawn = list(timeline(made(), {"loop": 1, "codec": 2}))
    assert [(b.name, b.level) for b in drawn] == [("loop", 0), ("codec", 1), ("loop", 0), ("loop", 0)]
    assert drawn[1].left == pytest.approx(100 / 3.25)


@pytest.mark.parametrize("steps", [0, 4])
def test_the_page_is_one_file_without_scripts(tmp_path: Path, steps: int):
    page = write(made(made().steps[:steps]), tmp_path)[0].read_text()
    outside = Outside()
    outside.feed(page)
    assert not outside.found
    assert not outside.names & {"script", "link", "iframe", "img", "object"}
    assert "url(" not in page
    assert len(re.findall(r'title="loop', page)) == (4 if steps else 0)
