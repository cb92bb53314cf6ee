"""`docs/known-faults.md`: every fault has a row, every row a test, and every test exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent
PAGE = (ROOT / "docs" / "known-faults.md").read_text(encoding="utf-8")
ROWS = {match[1]: match[2] for match in re.finditer(r"^\| (H\d+) \| (.*) \|$", PAGE, re.MULTILINE)}
NAMED = re.compile(r"`((?:[\w/]+/)?test_\w+\.py)(?:::(\w+))?`")
OPEN = {"H25"}  # what nothing here can show yet
IDS = """
H01 H02 H04 H05 H07 H08 H10 H11 H13 H14 H16 H17 H19 H20 H23 H25 H26
H28 H29 H31 H32 H34 H37 H38 H40 H41 H43
H44 H46 H47 H49 H50 H52 H53 H55 H56 H58 H59
H61 H62 H64 H65 H67 H68 H70 H71 H73 H74 H76 H77
H79 H80 H82 H83 H85 H86 H88 H89
"""


@cache
def functions(path):
    return {node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if hasattr(node, "name")}


def missing(text):
    """What a text names that does not exist."""
    found = [(ROOT / file if "/" in file else HERE / file, test) for file, test in NAMED.findall(text)]
    return [f"{p.name}::{test}" for p, test in found if not p.is_file() or (test and test not in functions(p))]


def test_every_test_named_by_the_page_exists():
    assert missing(PAGE) == []
    assert missing("`test_media.py::test_nothing` `serving/core/tests/test_nowhere.py`") == [
        "test_media.py::test_nothing",
        "test_nowhere.py::",
    ]


def test_every_fault_has_a_row_with_a_test_of_its_own():
    assert list(ROWS) == IDS.split()
    assert {key for key, row in ROWS.items() if not any(test for _, test in NAMED.findall(row))} == OPEN
