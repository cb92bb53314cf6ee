"""Charts as SVG inside the page: Vega-Lite by Altair, drawn here; a report needs no script and no network.

Colours are the page's CSS variables, so that one drawing serves the light and the dark page. Charts are as
wide as a phone: on a wide screen they stand side by side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from perf.metrics.base import Spread, content, ended
from perf.schema import Point
from reports.history import Series
from reports.summary import Report, Row

WIDTH, HEIGHT = 300, 190
COLOURS = [f"var(--c{i})" for i in range(1, 9)]
OUTCOMES = {"ok": "var(--ok)", "failed": "var(--bad)", "dropped": "var(--warn)"}
MOST_REQUESTS = 48  # bars in a timeline
MOST_TICKS = 600
MOST_BARS = 120
DECADE = 10  # loads whose latencies differ by more than this are drawn on a logarithmic axis


def svg(chart: Any, title: str) -> str:
    """A Vega-Lite chart drawn as SVG that scales with its column and follows the page's colours."""
    ink, faint = "var(--ink)", "var(--line)"
    styled = chart.configure(
        background="transparent",
        font="system-ui, sans-serif",
        axis=alt.AxisConfig(
            labelColor=ink, titleColor=ink, gridColor=faint, domainColor=faint, tickColor=faint,
            titleFontWeight=400, labelFontSize=11, titleFontSize=12,
        ),
        legend=alt.LegendConfig(
            labelColor=ink, titleColor=ink, orient="top", titleFontWeight=400, columns=3
        ),
        view=alt.ViewConfig(stroke=None),
    )  # fmt: skip
    drawn: str = vl_convert.vegalite_to_svg(styled.to_json(validate=False))
    # A label on each of a thousand marks helps nobody who listens to the page, and doubles its size.
    drawn = re.sub(r' (aria-[a-z]+|role|pointer-events|stroke-miterlimit)="[^"]*"', "", drawn)
    drawn = _slim(re.sub(r'(?<= )(d|transform)="[^"]*"', _rounded, drawn))
    head, rest = drawn.split(">", 1)
    width, height = (head.split(f'{name}="', 1)[1].split('"', 1)[0] for name in ("width", "height"))
    name = f'role="img" aria-label="{escape(title)}" style="max-width:{width}px"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {name}>{rest}'


def _rounded(attribute: re.Match[str]) -> str:
    """Coordinates to a tenth of a pixel."""
    return re.sub(r"\d+\.\d\d+", lambda number: f"{float(number[0]):.1f}", attribute[0])


def _slim(drawn: str) -> str:
    """The same drawing without what nobody sees, and with neighbours of one style as one path: half the bytes."""
    drawn = re.sub(r'<path class="(background|foreground)"[^>]*/>', "", drawn)
    drawn = re.sub(r' (class="[^"]*"|opacity="1"|transform="translate\(0,0\)")', "", drawn)
    drawn = re.sub(r'<line( transform="translate\(([^)]*)\)")? x2="([^"]*)" y2="([^"]*)"', _as_path, drawn)
    while (shorter := re.sub(r"<g></g>", "", drawn)) != drawn:
        drawn = shorter
    return re.sub(r'(?:<path d="[^"]*"(?: [a-z-]+="[^"]*")*/>){2,}', _joined, drawn)


def _as_path(line: re.Match[str]) -> str:
    return f'<path d="M{line[2] or "0,0"}l{line[3]},{line[4]}"'


def _joined(paths: re.Match[str]) -> str:
    """Paths in a row; those that differ in their outline alone become one."""
    found: list[tuple[str, str]] = []
    for outline, style in re.findall(r'<path d="([^"]*)"((?: [a-z-]+="[^"]*")*)/>', paths[0]):
        if found and found[-1][1] == style and "fill-opacity" not in style:
            found[-1] = (found[-1][0] + outline, style)
        else:
            found.append((outline, style))
    return "".join(f'<path d="{outline}"{style}/>' for outline, style in found)


def _colour(field: str, names: Sequence[str], title: str | None = None) -> Any:
    scale = alt.Scale(domain=list(names), range=COLOURS[: len(names)] if len(names) <= len(COLOURS) else COLOURS)
    legend = alt.Legend(columns=3 if max(map(len, names), default=0) <= 12 else 2, labelLimit=130)
    return alt.Color(field, type="nominal", scale=scale, title=title, sort=None, legend=legend)


def trade_off(report: Report) -> str | None:
    """Throughput against p95 of the first response: up and to the left is better."""
    lines = []
    for row in report.rows:
        x, y = row.figures[report.first], row.figures[report.headline]
        if x.spread and y.value is not None:
            lines.append(
                {
                    "target": row.label,
                    "load": row.load.name,
                    "level": row.load.level,
                    "x": x.spread.p95,
                    "y": y.value,
                }
            )
    if not lines:
        return None
    first, throughput = report.rows[0].figures[report.first], report.rows[0].figures[report.headline]
    frame = pd.DataFrame(lines)
    wide = frame["x"].min() > 0 and frame["x"].max() > DECADE * frame["x"].min()
    across = alt.Scale(type="log", nice=False, padding=16) if wide else alt.Scale(domainMin=0, padding=16)
    base = alt.Chart(frame).encode(
        x=alt.X(
            "x:Q", title=f"{first.title}, p95 (s{', log' if wide else ''})", scale=across, axis=alt.Axis(tickCount=6)
        ),
        y=alt.Y("y:Q", title=f"{throughput.title} ({throughput.unit})", scale=alt.Scale(padding=12)),
        color=_colour("target:N", report.labels),
    )
    order = alt.Order("level:Q")
    ends = frame[frame["level"].isin([frame["level"].min(), frame["level"].max()])]  # all would lie on each other
    text = base.properties(data=ends).mark_text(dy=-9, fontSize=11).encode(text="load:N")
    layers = alt.layer(base.mark_line(strokeWidth=2).encode(order=order), base.mark_point(filled=True, size=50), text)
    return svg(layers.properties(width=WIDTH, height=HEIGHT), "Throughput against first response")


def throughput(report: Report) -> str | None:
    """Throughput over load with its interval, where repeats give one."""
    found = [(row, row.figures[report.headline]) for row in report.rows]
    frame = pd.DataFrame(
        [
            {"target": row.label, "load": row.load.name, "y": f.value, "low": f.low, "high": f.high}
            for row, f in found
            if f.value is not None
        ]
    )
    if frame.empty:
        return None
    title = f"{found[0][1].title} ({found[0][1].unit})"
    base = alt.Chart(frame).encode(
        x=alt.X("load:N", title="Load", sort=None, axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("target:N", sort=None),
        color=_colour("target:N", report.labels),
    )
    bars = base.mark_bar().encode(y=alt.Y("y:Q", title=title))
    rules = base.mark_rule(strokeWidth=2).encode(y="low:Q", y2="high:Q", color=alt.value("var(--ink)"))
    return svg(alt.layer(bars, rules).properties(width=WIDTH, height=HEIGHT), title)


def distribution(rows: Sequence[Row], metric: Spread) -> str | None:
    """The share of requests with at most this value, one line a load."""
    lines = []
    for row in rows:
        values = sorted(value for point in row.points for value in metric.values(point))
        # A step at each value; enough of them for the eye where there are thousands.
        step = max(1, len(values) // 200)
        kept = [(i, v) for i, v in enumerate(values, 1) if i % step == 0 or i in (1, len(values))]
        lines += [{"load": row.load.name, "value": v, "share": 100 * i / len(values)} for i, v in kept]
    if not lines:
        return None
    chart = alt.Chart(pd.DataFrame(lines)).mark_line(interpolate="step-after", strokeWidth=2)
    chart = chart.encode(
        x=alt.X("value:Q", title=f"{metric.title} ({metric.unit})", axis=alt.Axis(tickCount=5)),
        y=alt.Y("share:Q", title="Requests up to here (%)", scale=alt.Scale(domain=[0, 100])),
        color=_colour("load:N", [row.load.name for row in rows]),
    )
    return svg(chart.properties(width=WIDTH, height=HEIGHT), f"Distribution of {metric.title}")


def timeline(point: Point) -> str | None:
    """Requests as bars from send to end, each content chunk a tick, warm-up and held load pale."""
    records = point.records[: MOST_REQUESTS * 4]
    if len(records) > MOST_REQUESTS:
        start = next((i for i, r in enumerate(records) if r.sent >= point.start), 0)
        records = records[max(0, start - 5) :][:MOST_REQUESTS]
    if not records:
        return None
    measured = {id(r) for r in point.measured}
    bars = [
        {
            "i": i,
            "a": r.sent,
            "b": ended(r),
            "outcome": r.outcome,
            "opacity": 0.75 if id(r) in measured else 0.25,
        }
        for i, r in enumerate(records)
    ]
    ticks = [{"i": i, "t": c.t} for i, r in enumerate(records) for c in content(r)]
    outcomes = alt.Scale(domain=list(OUTCOMES), range=list(OUTCOMES.values()))
    base = alt.Chart(pd.DataFrame(bars)).mark_bar(height=3).encode(
        x=alt.X("a:Q", title="Seconds since the start of the run", scale=alt.Scale(zero=False)),
        x2="b:Q",
        y=alt.Y("i:Q", title="Request", axis=None, scale=alt.Scale(reverse=True)),
        color=alt.Color("outcome:N", title=None, scale=outcomes),
        opacity=alt.Opacity("opacity:Q", scale=None),
    )  # fmt: skip
    step = max(1, len(ticks) // MOST_TICKS)
    marks = alt.Chart(pd.DataFrame(ticks[::step], columns=["i", "t"])).mark_tick(
        thickness=1, size=5, orient="vertical", color="var(--ink)"
    )
    edges = pd.DataFrame({"t": [point.start, point.end]})
    window = alt.Chart(edges).mark_rule(strokeDash=[3, 3], color="var(--ink)").encode(x="t:Q")
    layers = alt.layer(base, marks.encode(x="t:Q", y="i:Q"), window)
    return svg(layers.properties(width=WIDTH, height=max(60, 6 * len(bars))), f"Timeline, {point.load.name}")


def machine(points: Sequence[Point], cores: int) -> str | None:
    """Who used the machine's CPU over the run."""
    points = [point for point in points if point.samples]  # a point that had no time has none
    span = points[-1].samples[-1].t - points[0].samples[0].t if points else 0.0
    shares = [line for point in points for line in _cpu_shares(point, span / MOST_BARS, cores)]
    if not shares:
        return None
    frame = pd.DataFrame(shares)
    chart = alt.Chart(frame).mark_rect().encode(
        x=alt.X("a:Q", title="Seconds since the start of the run"),
        x2="b:Q",
        y=alt.Y("low:Q", title="CPU of the machine (%)"),
        y2="high:Q",
        color=_colour("who:N", list(dict.fromkeys(frame["who"]))),
    )  # fmt: skip
    return svg(chart.properties(width=WIDTH, height=HEIGHT), "CPU of the machine")


def _cpu_shares(point: Point, least: float, cores: int) -> Iterator[dict[str, Any]]:
    """Bars of at least `least` seconds: the share of all cores that client, server and the rest used."""
    kept = point.samples[:1]
    for sample in point.samples[1:]:
        if sample.t - kept[-1].t >= max(least, 0.1):
            kept.append(sample)
    for a, b in pairwise(kept):
        if a.busy is None or b.busy is None:
            continue
        used = {"client": (b.client or 0) - (a.client or 0), "server": (b.server or 0) - (a.server or 0)}
        who = "others" if b.server is not None else "server and others"
        used[who] = max(0.0, b.busy - a.busy - sum(used.values()))
        low = 0.0
        for name, seconds in used.items():
            high = low + 100 * seconds / ((b.t - a.t) * cores)
            yield {"a": a.t, "b": b.t, "who": name, "low": low, "high": high}
            low = high


def history(one: Series) -> str:
    """A series over its runs, with the levels between its steps; invalid runs are hollow."""
    frame = pd.DataFrame([{"i": i, "value": s.value, "valid": s.valid} for i, s in enumerate(one.seen, 1)])
    base = alt.Chart(frame).encode(
        x=alt.X("i:Q", title="Run", axis=alt.Axis(tickMinStep=1, format="d")),
        y=alt.Y("value:Q", title=one.unit, scale=alt.Scale(zero=False, padding=8)),
    )
    colour = COLOURS[0]
    hollow = alt.condition("datum.valid", alt.value(colour), alt.value("transparent"))
    points = base.mark_point(size=40, stroke=colour).encode(fill=hollow)
    starts = [i for i, s in enumerate(one.seen, 1) if s.started in {change.started for change in one.changes}]
    rules = alt.Chart(pd.DataFrame({"i": [i - 0.5 for i in starts]})).mark_rule(strokeDash=[4, 3], color="var(--bad)")
    layers = alt.layer(base.mark_line(color=colour, opacity=0.5), points, rules.encode(x="i:Q"))
    return svg(layers.properties(width=WIDTH, height=HEIGHT // 2), one.name)
