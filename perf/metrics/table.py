"""The metrics as a Markdown table: `python -m perf.metrics.table`. docs/benchmarks.md holds it, and a test compares."""

from __future__ import annotations

from perf.metrics import ROUTES, for_route


def table() -> str:
    """One line a metric: name, what it is, unit, which way is better, what it needs, where it applies."""
    rows: dict[str, list[str]] = {}
    for route in ROUTES:
        for name, metric in for_route(route).items():
            said = (type(metric).__doc__ or "").split("\n\n")[0].replace("\n", " ").strip()
            line = [f"`{name}`", " ".join(said.split()), metric.unit, metric.better, metric.needs, route]
            if name in rows:
                rows[name][-1] += f", {route}"
            else:
                rows[name] = line
    head = ["Metric", "What it is", "Unit", "Better", "Needs", "Routes"]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows.values()])


if __name__ == "__main__":
    print(table())
