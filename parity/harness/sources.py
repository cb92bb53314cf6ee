"""What a recorder *says*, hashed: a case is stale when this changes, and reformatting or comments do not
change it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

IGNORED = {"type_comment", "kind", "type_params", "ctx"}
BODIES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _body(node: ast.AST, field: str, value: Any) -> Any:
    """A block without its docstring."""
    if field != "body" or not isinstance(node, BODIES) or not value:
        return value
    first = value[0]
    is_text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return value[1:] if is_text and isinstance(first.value.value, str) else value


def _canonical(node: Any) -> Iterator[str]:
    """Nodes and constants only. `ast.dump` is not used: its output differs between versions of Python."""
    if isinstance(node, list):
        yield "["
        for item in node:
            yield from _canonical(item)
        yield "]"
    elif isinstance(node, ast.AST):
        yield type(node).__name__
        for field, value in ast.iter_fields(node):
            value = _body(node, field, value)
            if value is not None and value != [] and field not in IGNORED:
                yield field
                yield from _canonical(value)
    else:
        yield repr(node)


def tree_hash(source: str) -> str:
    """sha256 of a module's syntax tree without positions, comments and docstrings."""
    return hashlib.sha256("\n".join(_canonical(ast.parse(source))).encode()).hexdigest()


def recorder_hash(folder: Path) -> str:
    """sha256 over every module of a family's oracle folder and its parsed `env.toml`."""
    total = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        total.update(f"{path.name} {tree_hash(path.read_text())}\n".encode())
    environment = folder / "env.toml"
    if environment.exists():
        parsed = tomllib.loads(environment.read_text())
        total.update(json.dumps(parsed, sort_keys=True, default=str).encode())
    return total.hexdigest()
