"""The size meter: lines and function lengths of the product, printed; over the limits it fails.

Limits: no file over 600 lines, no function over 60, the 90th percentile of functions under 28.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("toolkit", "reports", "perf", "parity", "oracles", "models", "serving")
FILE, FUNCTION, P90 = 600, 60, 28


def sources(root: Path) -> Iterator[Path]:
    """Product files: tests are left out, and folders that git does not see."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).parts
            if "tests" not in parts and not path.name.startswith("test_") and not any(p[0] == "." for p in parts):
                yield path


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and length in lines of each function, nested ones too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def measure(root: Path) -> tuple[str, list[str]]:
    """The report, and what breaks the limits."""
    files = {path.relative_to(root): len(path.read_text().splitlines()) for path in sources(root)}
    lengths = [found for path in sources(root) for found in functions(path)]
    spans = sorted(span for _, span in lengths) or [0]
    p90 = spans[int(0.9 * (len(spans) - 1))]
    broken = [f"{path}: {lines} lines, over {FILE}" for path, lines in files.items() if lines > FILE]
    broken += [f"{name}: {span} lines, over {FUNCTION}" for name, span in lengths if span > FUNCTION]
    broken += [f"90th percentile of functions: {p90} lines, not under {P90}"] if p90 >= P90 else []
    report = (
        f"{len(files)} files, {sum(files.values())} lines (median {statistics.median(files.values()):g}); "
        f"{len(spans)} functions, median {statistics.median(spans):g}, p90 {p90}, longest {spans[-1]}"
    )
    return report, broken


def main() -> int:
    report, broken = measure(Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd())
    print(report, *broken, sep="\n")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
