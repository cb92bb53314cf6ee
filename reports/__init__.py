"""Reports: pure functions of a run. `write_all` writes every form of one beside its run.json."""

from __future__ import annotations

import json
from pathlib import Path

from perf.schema import Run
from reports import exports, html, markdown
from reports.summary import Report, as_dict, build

__all__ = ["Report", "build", "write_all"]


def write_all(run: Run, out: Path) -> list[Path]:
    """Write report.html, .md, .json, CSV, JUnit and github-action-benchmark files. Returns the paths."""
    report = build(run)
    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "report.html": html.render(report),
        "report.md": markdown.render(report),
        "report.json": json.dumps(as_dict(report), indent=1),
        "metrics.csv": exports.figures_frame(report).to_csv(index=False),
        "requests.csv": exports.requests_frame(report).to_csv(index=False),
        "junit.xml": exports.junit(report).decode(),
        "benchmark-smaller.json": json.dumps(exports.action_benchmark(report, "lower"), indent=1),
        "benchmark-bigger.json": json.dumps(exports.action_benchmark(report, "higher"), indent=1),
    }
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return [out / name for name in texts]
