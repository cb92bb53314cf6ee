"""Every number of a report is derived again here from the bare run.json, by other code than the report's."""

from __future__ import annotations

import csv
import dataclasses
import html.parser
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import reports
from perf.arrivals import closed
from perf.client.routes import Target
from perf.fake_server import FakeServer, Script
from perf.launch import Running
from perf.schema import Load, Run, Sample, read_run
from perf.session import Session, Settings
from perf.tests.virtual import dial_to, simulate
from perf.workloads import default
from reports.numbers import quantity, significant
from reports.summary import build

SCRIPTS = [
    Script(first=0.2, gaps=(0.05, 0.25, 0.05), header=0.1),
    Script(first=0.3, gaps=(0.06, 0.07, 0.08), rate=16_000),
    Script(first=0.4, gaps=(0.05, 0.05), repeats=frozenset({1})),
    Script(first=0.5, gaps=(0.04,) * 6, size=4000),
    Script(fault="drop"),
]


def make(
    route: str = "speech", labels=("one",), loads=(closed(1), closed(4)), scripts=SCRIPTS, workload=None, **settings
) -> Run:
    async def main() -> Run:
        server = FakeServer(lambda i: scripts[i % len(scripts)])
        session = Session(
            workload or default(route), loads, Settings(**{"requests": 20, **settings}), dial=dial_to(server)
        )
        return await session.run([Running(Target(f"http://{label}", "fake", label)) for label in labels])

    return simulate(main)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make(labels=("one", "two"), repeats=3, slos={"ttfa": 0.45, "underrun": 0.1}, verify=2)
    out = tmp_path_factory.mktemp("run")
    run.save(out / "run.json")
    reports.write_all(read_run(out / "run.json"), out)
    return out


SPREADS = ("ttfa", "first_share", "e2e", "icl", "rtf", "audio_s", "underrun")


def rederived(run: dict, label: str, level: float) -> dict[str, float]:
    """Figures of one target at one load, from run.json as plain JSON."""
    values: dict[str, list[float]] = {name: [] for name in SPREADS}
    totals = ("audio", "requests", "good", "success", "c50", "c100", "c200")
    rates: dict[str, list[float]] = {name: [] for name in totals}
    for point in (p for p in run["points"] if p["label"] == label and p["load"]["level"] == level):
        start, end = point["start"], point["end"]
        audio = answers = good = 0.0
        pauses = []
        measured = [r for r in point["records"] if start <= r["sent"] <= point["sent_until"]]
        for r in point["records"]:
            if r["outcome"] != "ok":
                continue
            pieces = [(c[0], c[2]) for c in r["chunks"] if c[1] == "content"]
            rate = r["sound"]["rate"]
            audio += sum(size for t, size in pieces if start <= t <= end) / rate
            answers += start <= r["end"] <= end
            if r not in measured:
                continue
            seconds = sum(size for _, size in pieces) / rate
            played = np.cumsum([size for _, size in pieces])[:-1] / rate
            late = max(0.0, max(t - pieces[0][0] - p for (t, _), p in zip(pieces[1:], played, strict=True)))
            values["ttfa"].append(pieces[0][0] - r["sent"])
            values["first_share"].append(100 * (pieces[0][0] - r["sent"]) / (r["end"] - r["sent"]))
            values["e2e"].append(r["end"] - r["sent"])
            values["icl"] += list(np.diff([t for t, _ in pieces]))
            values["rtf"].append((r["end"] - r["sent"]) / seconds)
            values["audio_s"].append(seconds)
            pauses.append(late)
            good += pieces[0][0] - r["sent"] <= 0.45 and late <= 0.1 + 1e-6
        values["underrun"] += pauses
        for ms in (50, 100, 200):
            rates[f"c{ms}"].append(100 * float((np.array(pauses) <= ms / 1000 + 1e-6).mean()))
        rates["audio"].append(audio / (end - start))
        rates["requests"].append(answers / (end - start))
        rates["good"].append(100 * good / len(measured))
        rates["success"].append(100 * sum(r["outcome"] == "ok" for r in measured) / len(measured))
    found = {f"{name} p{p}": float(np.percentile(v, p)) for name, v in values.items() for p in (50, 90, 95, 99)}
    found |= {f"{name} n": len(v) for name, v in values.items()}
    means = {name: float(np.mean(v)) for name, v in rates.items()}
    names = {"audio": "audio_throughput", "requests": "request_throughput", "good": "goodput"}
    return found | {names.get(name, name): mean for name, mean in means.items()}


def test_every_number_is_derived_again_from_run_json(written: Path):
    run = json.loads((written / "run.json").read_text())
    rows = json.loads((written / "report.json").read_text())["rows"]
    assert len(rows) == 4
    for row in rows:
        level = float(row["load"].removeprefix("c="))
        for name, want in rederived(run, row["label"], level).items():
            metric, _, part = name.partition(" ")
            figure = row["figures"][metric]
            got = figure["n"] if part == "n" else figure["spread"][part] if part else figure["value"]
            assert got == pytest.approx(want, abs=1e-9), (row["label"], row["load"], name)


def test_counts_conserve_requests(written: Path):
    for row in json.loads((written / "report.json").read_text())["rows"]:
        counts = row["counts"]
        assert counts["sent"] == 60 == counts["ok"] + counts["failed"] + counts["dropped"]
        assert sum(row["failures"].values()) == counts["failed"] + counts["dropped"]


def test_markdown_and_html_show_the_numbers_of_report_json(written: Path):
    pages = [(written / name).read_text() for name in ("report.md", "report.html")]
    for row in json.loads((written / "report.json").read_text())["rows"]:
        for name in ("audio_throughput", "ttfa"):
            figure = row["figures"][name]
            for page in pages:
                assert quantity(figure["value"], figure["unit"]) in page
        assert f"{row['counts']['ok']} / {row['counts']['sent']}" in pages[0]


class Outside(html.parser.HTMLParser):
    """Collects whatever a page would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.names.add(tag)
        self.found += [(tag, v) for k, v in attrs if k in ("src", "href", "data", "action") and v]


def test_html_is_one_file_without_scripts(written: Path):
    page = (written / "report.html").read_text()
    parser = Outside()
    parser.feed(page)
    assert not parser.found
    assert not parser.names & {"script", "link", "iframe", "img", "object"}
    assert "@import" not in page
    assert "url(" not in page.split("</style>")[0]
    assert "prefers-color-scheme: dark" in page
    assert page.count("<svg") >= 7
    assert len(page) < 1_500_000


def test_colours_of_charts_follow_the_page(written: Path):
    page = (written / "report.html").read_text()
    for drawing in re.findall(r"<svg.*?</svg>", page, re.S):
        colours = set(re.findall(r'(?:fill|stroke)="([^"]+)"', drawing))
        assert colours <= {"none", "transparent"} | {c for c in colours if c.startswith("var(--")}, colours


def test_machine_readable_exports(written: Path):
    lines = list(csv.DictReader((written / "metrics.csv").open()))
    assert {line["target"] for line in lines} == {"one", "two"}
    requests = list(csv.DictReader((written / "requests.csv").open()))
    run = json.loads((written / "run.json").read_text())
    assert len(requests) == sum(len(p["records"]) for p in run["points"])
    assert sum(line["measured"] == "True" for line in requests) == 20 * 12
    suite = ElementTree.parse(written / "junit.xml").getroot()
    assert suite.get("tests") == str(len(suite))
    for name in ("smaller", "bigger"):
        for entry in json.loads((written / f"benchmark-{name}.json").read_text()):
            assert set(entry) == {"name", "unit", "value", "range", "extra"}
            assert isinstance(entry["value"], float)


def test_invalid_points_say_so_everywhere(tmp_path: Path):
    run = make()
    run.config.declared_rates = {"one": 48_000}
    files = {path.name: path for path in reports.write_all(run, tmp_path)}
    assert json.loads(files["report.json"].read_text())["verdict"] == "invalid"
    assert "the model declares 48000" in files["report.md"].read_text()
    assert "the model declares 48000" in files["report.html"].read_text()
    assert ElementTree.parse(files["junit.xml"]).getroot().get("failures") == "2"


def test_a_repeat_that_the_machine_spoilt_is_left_out_and_named():
    run = make(loads=[closed(1)], repeats=3)
    whole, (first, second, third) = build(run), run.points
    span = second.end - second.start
    samples = [Sample(t, busy=busy, client=0.0, server=0.0) for t, busy in ((0.0, 0.0), (span, 0.5 * span))]
    run.client["cores"] = 1
    run.points[1] = dataclasses.replace(second, samples=samples)
    (row,) = build(run).rows
    assert row.points == (first, third)
    assert row.figures["ttfa"].n == whole.rows[0].figures["ttfa"].n * 2 // 3
    assert [(f.level, f.message) for f in row.flags if f.code == "left_out"] == [
        ("warning", "1 of 3 repeats left out: other programs used 50 % of the machine's CPU")
    ]
    run.points[:] = [run.points[1]]
    (row,) = build(run).rows
    assert not row.valid
    assert row.points == tuple(run.points)


@pytest.mark.parametrize(
    ("route", "settings"),
    [
        ("chat", {}),
        ("transcription", {}),
        ("speech", {"loads": [closed(2)], "requests": 1}),
        ("speech", {"scripts": [Script(status=500)]}),
        ("speech", {"loads": [Load("poisson", 5.0)]}),
        ("speech", {"labels": ("one", "two"), "requests": 4}),
    ],
    ids=["chat", "transcription", "one request", "all failed", "open loop", "two targets once"],
)
def test_any_run_can_be_shown(route, settings, tmp_path: Path):
    files = {path.name: path for path in reports.write_all(make(route, **settings), tmp_path)}
    assert all(path.stat().st_size for path in files.values())
    assert "nan" not in files["report.md"].read_text().lower()


def test_a_run_without_points_can_be_shown(tmp_path: Path):
    run = dataclasses.replace(make(requests=1), points=[], partial=True)
    assert build(run).verdict == "invalid"
    reports.write_all(run, tmp_path)
    assert "invalid" in (tmp_path / "report.md").read_text()


def test_numbers_read_well():
    cases = {1234.5: "1234", 12.34: "12.3", 0.012345: "0.0123", 0.0: "0", -2.5: "-2.50"}
    assert {value: significant(value) for value in cases} == cases
    assert significant(float("nan")) == "n/a"
    assert quantity(0.25, "s") == "250 ms"
    assert quantity(2.0, "s") == "2.00 s"
    assert quantity(None, "s") == "n/a"
