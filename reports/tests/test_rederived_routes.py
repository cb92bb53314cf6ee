"""Figures of pictures, actions and live sessions, derived again from the bare run.json by other code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from perf.arrivals import closed
from perf.fake_server import Script
from perf.schema import read_run
from reports.summary import as_dict, build
from reports.tests.test_rederived import rates, spreads, word_errors
from reports.tests.test_reports import make

SCRIPTS = [
    Script(first=0.2, gaps=(0.05, 0.25, 0.05), size=3),
    Script(first=0.3, gaps=(0.06,), size=7, header=0.1),
    Script(first=0.9, gaps=(0.1, 0.2), size=1),
    Script(fault="drop"),
]
ALWAYS = {"success", "goodput", "offered", "achieved"}  # of any route: derived with those of speech


def actions(point: dict, record: dict) -> dict[str, list[float]]:
    times = [c[0] for c in record["chunks"] if c[1] == "content"]
    return {"ttfo": [times[0] - record["sent"]], "icl": list(np.diff(times))}


def live(point: dict, record: dict) -> dict[str, list[float]]:
    pieces = [s for s in record["sends"] if s[2]]
    answers = [c for c in record["chunks"] if c[1] == "content"]
    total, items = sum(s[2] for s in pieces), sum(c[2] for c in answers)
    late, said = [], 0
    for t, _, size, _ in answers:
        said += size
        heard = 0
        for due, _, samples in pieces:
            heard += samples
            if heard * items >= total * said:
                late.append(t - due)
                break
    return {"lag": late, "final": [record["end"] - record["sends"][-1][0]]}


def realtime(point: dict, record: dict) -> dict[str, list[float]]:
    end = record["sends"][-1][0]
    first = next(c[0] for c in record["chunks"] if c[1] == "content")
    return {"first_after": [first - end], "final": [record["end"] - end], "audio_s": [record["input_seconds"]]}


ROUTES = {
    "image": (lambda point, record: {}, {"picture_throughput": lambda r: r["made"]}),
    "video": (lambda point, record: {}, {"film_throughput": lambda r: r["made"]}),
    "generate": (actions, {"output_throughput": lambda r: r["made"]}),
    "live": (live, {"output_throughput": lambda r: r["made"]}),
    "realtime": (realtime, {"audio_throughput": lambda r: r["input_seconds"]}),
}


@pytest.mark.parametrize("route", ROUTES)
def test_every_figure_is_derived_again_from_run_json(route: str, tmp_path: Path):
    of, amounts = ROUTES[route]
    run = make(route, scripts=SCRIPTS, loads=[closed(1), closed(4)], repeats=2, requests=12)
    path = run.save(tmp_path / "run.json")
    bare = json.loads(path.read_text())
    rows = as_dict(build(read_run(path)))["rows"]
    assert len(rows) == 2
    for row in rows:
        points = [p for p in bare["points"] if p["load"]["level"] == float(row["load"].removeprefix("c="))]
        want = spreads(points, of) | rates(points, {"request_throughput": lambda r: 1, **amounts})
        if route == "realtime":
            want["wer"] = word_errors(points)
        for name, value in want.items():
            metric, _, part = name.partition(" ")
            figure = row["figures"][metric]
            got = figure["n"] if part == "n" else figure["spread"][part] if part else figure["value"]
            assert got == pytest.approx(value, abs=1e-9), (row["load"], name)
        shown = {n for n, f in row["figures"].items() if f["value"] is not None}
        assert shown <= {n.split()[0] for n in want} | ALWAYS
        assert {"e2e", *(n.split()[0] for n in want)} <= shown
