"""`docs/known-faults.md` names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent


def test_every_test_named_by_the_page_exists():
    text = (ROOT / "docs" / "known-faults.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`((?:[\w/]+/)?test_\w+\.py)(?:::(\w+))?`", text))
    assert len(names) > 30
    for file, test in names:
        path = ROOT / file if "/" in file else HERE / file
        assert path.is_file(), file
        functions = {node.name for node in ast.walk(ast.parse(path.read_text())) if hasattr(node, "name")}
        assert not test or test in functions, f"{file}::{test}"
