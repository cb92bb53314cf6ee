"""A static site of many runs: what is right and what is fast now, how it got there, and every run's own report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perf.schema import read_run
from reports import parity
from reports.charts import history, throughput, trade_off
from reports.history import Series, series
from reports.html import Drawing, environment, render
from reports.summary import Report, build
from serving.errors import SetupError


def write_dashboard(folders: Sequence[Path], out: Path) -> Path:
    """Read every run.json and the newest parity.json under the folders; write out/index.html and a page for each run.

    Returns the index. Raises `SetupError` where there is no run, or a file is none.
    """
    paths = sorted({path for folder in folders for path in folder.rglob("run.json")})
    if not paths:
        raise SetupError(f"No run.json under {', '.join(map(str, folders))}.")
    reports = sorted((build(read_run(path)) for path in paths), key=lambda r: r.run.started)
    names = [f"{i:04d}-{re.sub(r'[^0-9T]', '', r.run.started)}" for i, r in enumerate(reports)]
    out.mkdir(parents=True, exist_ok=True)
    for name, report in zip(names, reports, strict=True):
        (out / f"{name}.html").write_text(render(report), encoding="utf-8")
    found = series(reports)
    compared = parity.newest(sorted({path for folder in folders for path in folder.rglob("parity.json")}))
    loads, now = standings(found)
    page = environment().get_template("dashboard.html.j2").render(
        runs=list(zip(names, reports, strict=True))[::-1],
        loads=loads,
        now=now,
        machines=len({one.machine for one in found}),
        parity=compared,
        matrix=parity.matrix(compared) if compared else [],
        rungs=parity.RUNGS,
        sweeps=list(_sweeps(reports)),
        drawings=[(one, history(one)) for one in found if len(one.seen) > 1],
        changes=[(one, change) for one in found for change in one.changes],
    )  # fmt: skip
    index = out / "index.html"
    index.write_text(page, encoding="utf-8")
    return index


@dataclass(frozen=True, slots=True)
class Standing:
    """The newest figures of a target: one metric, load by load."""

    one: Series
    by_load: Mapping[str, Series]

    @property
    def name(self) -> str:
        return self.one.label if self.one.label == self.one.model else f"{self.one.label} ({self.one.model})"


def standings(found: Sequence[Series]) -> tuple[list[str], list[Standing]]:
    """The loads, lightest first, and a line for each target, metric and machine."""
    lines: dict[tuple[str, ...], dict[str, Series]] = {}
    for one in found:
        lines.setdefault((one.model, one.label, one.metric, one.machine), {})[one.load] = one
    loads = sorted(
        {one.load for one in found}, key=lambda load: (load[:2] != "c=", float(re.findall(r"[\d.]+", load)[0]))
    )
    return loads, [Standing(next(iter(by_load.values())), by_load) for by_load in lines.values()]


def _sweeps(reports: Sequence[Report]) -> Iterator[Drawing]:
    """The newest sweep over loads of each set of models; invalid ones are drawn, and say so."""
    parts = [part for report in reports for part in report.sections if len(part.rows) > 1]
    newest = {(part.route, *part.labels): part for part in parts}
    for (_, *labels), report in newest.items():
        models = dict.fromkeys(report.run.config.models[label] for label in labels)
        name = ", ".join(models) + ("" if report.verdict != "invalid" else " (invalid)")
        drawn = {"throughput by load": throughput(report)}
        if len({row.load for row in report.rows}) > 1:
            drawn["throughput against first response"] = trade_off(report)
        yield from (Drawing(f"{name}: {what}", svg) for what, svg in drawn.items() if svg)
