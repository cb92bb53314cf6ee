"""report.html: one file, no scripts, no outside resources; light and dark; for a desk and for a phone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import jinja2

from perf.budget import WARMUP
from perf.metrics import for_route
from perf.metrics.base import Spread
from reports import charts
from reports.markdown import with_parts
from reports.numbers import percentile, quantity, significant, with_interval
from reports.summary import Report

SPREADS = {
    "speech": ("ttfa", "e2e", "icl", "underrun"),
    "transcription": ("e2e", "rtf"),
    "chat": ("ttft", "itl", "icl", "e2e"),
    "image": ("e2e",),
    "video": ("e2e",),
    "generate": ("ttfo", "icl", "e2e"),
    "live": ("lag", "final"),
    "realtime": ("final", "first_after"),
}


@dataclass(frozen=True, slots=True)
class Drawing:
    title: str
    svg: str


def render(report: Report) -> str:
    """The page."""
    config = report.run.config
    return environment().get_template("report.html.j2").render(
        report=report,
        config=config,
        client=report.run.client,
        overviews=[(section, _overview(section)) for section in report.sections],
        machine=_machine(report),
        warmup=WARMUP,
        with_parts=with_parts,
        flags=_flags(report),
        title=" and ".join(config.models[section.labels[0]] for section in report.sections if section.rows),
        beside=[label for section in report.sections for label in section.labels[1:]],
        spreads=[drawing for section in report.sections for drawing in _spreads(section)],
        timelines=list(_timelines(report)),
    )  # fmt: skip


@cache
def environment() -> jinja2.Environment:
    """The templates, with this package's ways of writing numbers."""
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("reports"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    env.filters |= {"percentile": percentile, "with_interval": with_interval, "significant": significant}
    env.globals["quantity"] = quantity
    return env


def _flags(report: Report) -> list[tuple[str, list[str]]]:
    """What speaks against the numbers, one entry a reason, what invalidates first."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in report.rows:
        for flag in row.flags:
            found.setdefault((flag.level, flag.code), []).append(f"{row.name}: {flag.message}")
    return [(level, said) for (level, _), said in sorted(found.items(), key=lambda item: item[0][0])]


def _overview(section: Report) -> list[Drawing]:
    drawn = {
        "Throughput against first response": charts.trade_off(section),
        "Throughput by load": charts.throughput(section),
    }
    return [Drawing(title, svg) for title, svg in drawn.items() if svg]


def _machine(report: Report) -> Drawing | None:
    points = sorted((point for row in report.rows for point in row.points), key=lambda p: p.start)
    drawn = charts.machine(points, report.run.client.get("cores", 1))
    return Drawing("The machine", drawn) if drawn else None


def _spreads(report: Report) -> Iterator[Drawing]:
    metrics = for_route(report.route)
    for name in SPREADS[report.route]:
        for label in report.labels:
            metric = metrics[name]
            assert isinstance(metric, Spread)
            drawn = charts.distribution([row for row in report.rows if row.label == label], metric)
            if drawn:
                yield Drawing(f"{metric.title}, {label}" if len(report.run.config.models) > 1 else metric.title, drawn)


def _timelines(report: Report) -> Iterator[Drawing]:
    for row in report.rows:
        drawn = charts.timeline(row.points[0])
        if drawn:
            yield Drawing(row.name, drawn)
