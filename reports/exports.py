"""The report for other programs: CSV, JUnit, github-action-benchmark."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pandas as pd

from perf.metrics.base import content
from reports.numbers import quantity
from reports.summary import Report, Row


def figures_frame(report: Report) -> pd.DataFrame:
    """One line a target, load and metric."""
    return pd.DataFrame(
        [
            {
                "target": row.label,
                "load": row.load.name,
                "level": row.load.level,
                "metric": f.name,
                "unit": f.unit,
                "better": f.better,
                "n": f.n,
                "value": f.value,
                "low": f.low,
                "high": f.high,
                **{f"p{p}": f.quantile(p) for p in (50, 90, 95, 99)},
            }
            for row in report.rows
            for f in row.figures.values()
        ]
    )


def requests_frame(report: Report) -> pd.DataFrame:
    """One line a request, warm-up and held load included and marked."""
    lines: list[dict[str, Any]] = []
    for point in report.run.points:
        measured = {id(r) for r in point.measured}
        for r in point.records:
            chunks = content(r)
            line: dict[str, Any] = {"target": point.label, "load": point.load.name, "repeat": point.repeat}
            line |= {"item": r.item, "measured": id(r) in measured, "outcome": r.outcome}
            line |= {
                "failure": r.failure.kind if r.failure else None,
                "scheduled": r.scheduled,
                "sent": r.sent,
            }
            line |= {"first_content": chunks[0].t if chunks else None, "end": r.end, "chunks": len(chunks)}
            line |= {"size": sum(c.size for c in chunks), "rate": r.sound.rate if r.sound else None}
            lines.append(line | {"input_seconds": r.input_seconds, "tokens": r.tokens})
    return pd.DataFrame(lines)


def junit(report: Report) -> bytes:
    """A test case for each target and load: it fails when its numbers must not be used."""
    suite = ElementTree.Element("testsuite", name="bench." + ".".join(report.routes))
    for row in report.rows:
        _case(suite, row, report)
    bad = [c for c in report.comparisons if not c]
    for comparison in bad:
        case = ElementTree.SubElement(suite, "testcase", classname="gate", name=comparison.load.name)
        ElementTree.SubElement(case, "failure", message=str(comparison))
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(sum(case.find("failure") is not None for case in suite)))
    return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)


def _case(suite: ElementTree.Element, row: Row, report: Report) -> None:
    seconds = sum(p.seconds for p in row.points)
    case = ElementTree.SubElement(suite, "testcase", classname=row.label, name=row.load.name, time=f"{seconds:.3f}")
    wrong = [flag.message for flag in row.flags if flag.level == "invalid"]
    if wrong:
        ElementTree.SubElement(case, "failure", message="; ".join(wrong))
    facts = [f"{f.title}: {quantity(f.value, f.unit)} (n={f.n})" for f in row.figures.values() if f.n]
    ElementTree.SubElement(case, "system-out").text = "\n".join(facts)


def action_benchmark(report: Report, better: str) -> list[dict[str, Any]]:
    """github-action-benchmark's custom format: one file for what should be smaller, one for bigger."""
    return [
        {
            "name": f"{row.name}: {f.title}",
            "unit": f.unit,
            "value": f.value,
            "range": f"{f.low:.6g} to {f.high:.6g}" if f.low is not None and f.high is not None else "",
            "extra": f"n={f.n}" + ("" if row.valid else ", invalid"),
        }
        for row in report.rows
        for f in row.figures.values()
        if f.better == better and f.value is not None
    ]
