"""A static site of many runs: what is fast now, how it got there, and every run's own report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from perf.schema import read_run
from reports import write_all
from reports.charts import history
from reports.history import series
from reports.html import environment
from reports.summary import build
from serving.errors import SetupError


def write_dashboard(folders: Sequence[Path], out: Path) -> Path:
    """Read every run.json under the folders, write out/index.html and each run's reports. Returns the index."""
    paths = sorted({path for folder in folders for path in folder.rglob("run.json")})
    if not paths:
        raise SetupError(f"No run.json under {', '.join(map(str, folders))}.")
    reports = sorted((build(read_run(path)) for path in paths), key=lambda r: r.run.started)
    names = [f"{i:04d}-{re.sub(r'[^0-9T]', '', r.run.started)}" for i, r in enumerate(reports)]
    for name, report in zip(names, reports, strict=True):
        write_all(report.run, out / name)
    found = series(reports)
    page = environment().get_template("dashboard.html.j2").render(
        runs=list(zip(names, reports, strict=True))[::-1],
        series=found,
        drawings=[(one, history(one)) for one in found if len(one.seen) > 1],
        changes=[(one, change) for one in found for change in one.changes],
    )  # fmt: skip
    index = out / "index.html"
    index.write_text(page, encoding="utf-8")
    return index
