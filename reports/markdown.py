"""report.md: what a reviewer reads in a pull request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reports.numbers import percentile, quantity, with_interval
from reports.summary import Report, Row


def render(report: Report) -> str:
    """The report in GitHub's Markdown."""
    config = report.run.config
    models = ", ".join(f"`{name}`" for name in dict.fromkeys(config.models.values()))
    parts = [
        f"## Bench of {' and '.join(report.routes)}: {models} - {report.verdict}",
        _flags(report),
        *(_table(_head(part), (_line(part, row) for row in with_parts(part))) for part in report.sections),
        _legend(report),
        "\n".join(f"- {found}" for found in report.found),
        _failures(report),
        _comparisons(report),
        _verified(report),
        _environment(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def with_parts(section: Report) -> list[Row]:
    """The rows of a section, each followed by those of its parts."""
    return [one for row in section.rows for one in (row, *row.parts)]


def _head(report: Report) -> list[str]:
    shown = report.rows[0].figures if report.rows else {}
    first = shown[report.first].title if shown else "First response"
    throughput = shown[report.headline].title if shown else "Throughput"
    return [
        "Target",
        "Load",
        "OK / sent",
        throughput,
        f"{first}, median",
        "p95",
        *(["End to end, p95"] if report.first != "e2e" else []),
        *(f.title for f in report.extra),
    ]


def _line(report: Report, row: Row) -> list[str]:
    f = row.figures
    return [
        row.label,
        row.load.name + ("" if row.valid else " (invalid)"),
        f"{row.counts.ok} / {row.counts.sent}",
        with_interval(f[report.headline]),
        with_interval(f[report.first]),
        percentile(f[report.first], 95),
        *([percentile(f["e2e"], 95)] if report.first != "e2e" else []),
        *(quantity(f[extra.name].value, extra.unit) for extra in report.extra),
    ]


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    body = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
    return "\n".join(f"| {line} |" for line in [" | ".join(head), " | ".join("---" for _ in head), *body])


def _flags(report: Report) -> str:
    found = [f"- **{f.level}** {row.name}: {f.message}" for row in report.rows for f in row.flags]
    return "\n".join(found)


def _legend(report: Report) -> str:
    doubtful = any(f.doubtful for row in report.rows for f in row.figures.values() if f.n)
    note = "Intervals are 95 % bootstrap intervals."
    return note + (" `*`: too few values for this percentile." if doubtful else "")


def _failures(report: Report) -> str:
    lines = [[row.name, why, str(n)] for row in report.rows for why, n in row.failures.items()]
    return _table(["Failures", "Reason", "Requests"], lines) if lines else ""


def _comparisons(report: Report) -> str:
    parts = [part for part in report.sections if part.comparisons]
    return "\n\n".join(f"Compared with {p.labels[0]}:\n\n" + "\n".join(f"- {c}" for c in p.comparisons) for p in parts)


def _verified(report: Report) -> str:
    checks = [check for row in report.rows for check in row.checks]
    if not checks:
        return ""
    equal = sum(check.method == "bytes" and check.passed for check in checks)
    passed = sum(check.passed for check in checks)
    same = f"{passed} of {len(checks)} answers under load match the same request alone"
    return f"Verified: {same} ({equal} byte for byte)."


def _environment(report: Report) -> str:
    client, config = report.run.client, report.run.config
    facts = [f"{client.get('cores')} cores of {client.get('cpu')}", str(client.get("system", ""))]
    facts += [f"Python {client.get('python')}"]
    facts += [f"{name} {version}" for name, version in client.get("packages", {}).items()]
    commit = client.get("commit")
    facts += [f"commit {commit[:12]}{' with changes' if client.get('dirty') else ''}"] if commit else []
    works = "; ".join(f"{work.name}: {work.items} distinct requests" for work in config.workloads.values())
    budget = f" {config.budget:g} s for the whole run, shared by its points." if config.budget else ""
    return f"{works}; seed {config.seed}.{budget} {', '.join(facts)}. {report.run.started}."
