"""Figures of chats and transcripts, derived again from the bare run.json by other code than the report's."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from perf.arrivals import closed
from perf.fake_server import Script
from perf.schema import read_run
from perf.text import normaliser
from perf.workloads import named
from reports import write_all
from reports.summary import as_dict, build
from reports.tests.test_reports import make

CHAT = [
    Script(first=0.2, gaps=(0.05, 0.25, 0.05), size=1, header=0.1),  # a token a chunk: the total says enough
    Script(first=0.3, gaps=(0.06, 0.07), size=5, usage="running"),
    Script(first=0.4, gaps=(0.05, 0.05), size=3),  # tokens in all, and not by chunk
    Script(first=0.2, gaps=(), size=1),  # one token has no pace
    Script(first=0.1, gaps=(0.02,), size=2, usage="none"),
    Script(fault="drop"),
]
HEARD = [Script(first=0.2, gaps=(0.1,)), Script(first=0.5, gaps=()), Script(status=500), Script(first=0.3, gaps=())]


def edits(a: list[str], b: list[str]) -> int:
    """Levenshtein's distance over words."""
    before = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        now = [i]
        for j, y in enumerate(b, 1):
            now.append(min(before[j] + 1, now[-1] + 1, before[j - 1] + (x != y)))
        before = now
    return before[-1]


def chat(point: dict, record: dict) -> dict[str, list[float]]:
    pieces = [c for c in record["chunks"] if c[1] == "content"]
    times, tokens = [c[0] for c in pieces], record["tokens"]
    per_chunk = [c[3] for c in pieces] if all(c[3] for c in pieces) else [1] * len(pieces)
    known = sum(per_chunk) == tokens
    gaps = zip(np.diff(times), per_chunk[1:], strict=True) if known else ()
    paced = tokens and tokens > 1
    return {
        "ttft": [times[0] - record["sent"]],
        "icl": list(np.diff(times)),
        "itl": [gap / k for gap, k in gaps for _ in range(k)],
        "tpot": [(record["end"] - times[0]) / (tokens - 1)] if paced else [],
    }


def transcript(point: dict, record: dict) -> dict[str, list[float]]:
    seconds = record["input_seconds"]
    return {
        "ttft": [record["chunks"][0][0] - record["sent"]],
        "rtf": [(record["end"] - record["sent"]) / seconds],
        "audio_s": [seconds],
    }


def spreads(points: list[dict], of) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for point in points:
        measured = [r for r in point["records"] if point["start"] <= r["sent"] <= point["sent_until"]]
        for r in (r for r in measured if r["outcome"] == "ok"):
            for name, found in {**of(point, r), "e2e": [r["end"] - r["sent"]]}.items():
                values.setdefault(name, []).extend(found)
    figures = {f"{name} p{p}": float(np.percentile(v, p)) for name, v in values.items() for p in (50, 90, 95, 99)}
    return figures | {f"{name} n": len(v) for name, v in values.items()}


def rates(points: list[dict], amounts) -> dict[str, float]:
    """Amounts of the answers that ended in the window, a second of it; the mean over repeats."""
    found: dict[str, list[float]] = {name: [] for name in amounts}
    for point in points:
        start, end = point["start"], point["end"]
        good = [r for r in point["records"] if r["outcome"] == "ok" and start <= r["end"] <= end]
        for name, amount in amounts.items():
            found[name].append(sum(amount(r) or 0 for r in good) / (end - start))
    return {name: float(np.mean(v)) for name, v in found.items()}


def word_errors(points: list[dict]) -> float:
    """Percent, over repeats."""
    clean, found = normaliser()[1], []
    for point in points:
        measured = [r for r in point["records"] if point["start"] <= r["sent"] <= point["sent_until"]]
        pairs = [(clean(r["reference"]).split(), clean(r["text"]).split()) for r in measured if r["outcome"] == "ok"]
        found.append(100 * sum(edits(a, b) for a, b in pairs) / sum(len(a) for a, _ in pairs))
    return float(np.mean(found))


@pytest.mark.parametrize("route", ["chat", "transcription"])
def test_every_figure_is_derived_again_from_run_json(route: str, tmp_path: Path):
    scripts = CHAT if route == "chat" else HEARD
    run = make(route, scripts=scripts, loads=[closed(1), closed(4)], repeats=2)
    path = run.save(tmp_path / "run.json")
    bare = json.loads(path.read_text())
    rows = as_dict(build(read_run(path)))["rows"]
    assert len(rows) == 2
    for row in rows:
        points = [p for p in bare["points"] if p["load"]["level"] == float(row["load"].removeprefix("c="))]
        want = spreads(points, chat if route == "chat" else transcript)
        amounts = {"request_throughput": lambda r: 1}
        amounts |= (
            {"token_throughput": lambda r: r["tokens"]}
            if route == "chat"
            else {"audio_throughput": lambda r: r["input_seconds"]}
        )
        want |= rates(points, amounts)
        if route == "transcription":
            want["wer"] = word_errors(points)
        for name, value in want.items():
            metric, _, part = name.partition(" ")
            figure = row["figures"][metric]
            got = figure["n"] if part == "n" else figure["spread"][part] if part else figure["value"]
            assert got == pytest.approx(value, abs=1e-9), (row["load"], name)
        others = {"success", "goodput", "offered", "achieved"}  # of any route: derived with those of speech
        assert {n for n, f in row["figures"].items() if f["value"] is not None} <= {n.split()[0] for n in want} | others


def test_a_run_of_two_routes_has_a_section_for_each_and_says_how_it_was_limited(tmp_path: Path):
    spoken, heard = (
        make(route, labels=(label,), requests=6) for route, label in (("speech", "a"), ("transcription", "b"))
    )
    config = dataclasses.replace(
        spoken.config,
        models={"a": "fake", "b": "fake"},
        routes={"a": "speech", "b": "transcription"},
        workloads={**spoken.config.workloads, **heard.config.workloads},
        budget=840.0,
        steady=True,
    )
    both = dataclasses.replace(spoken, config=config, points=[*spoken.points, *heard.points])
    read = read_run(both.save(tmp_path / "run.json"))
    alone = {one.points[0].label: as_dict(build(one))["rows"] for one in (spoken, heard)}
    report = build(read)
    assert as_dict(report)["rows"] == [*alone["a"], *alone["b"]]
    assert [(section.route, section.headline) for section in report.sections] == [
        ("speech", "audio_throughput"), ("transcription", "audio_throughput"),
    ]  # fmt: skip
    paths = {path.name: path.read_text() for path in write_all(read, tmp_path)}
    page, text = paths["report.html"], paths["report.md"]
    assert "840 s for the whole run" in text
    assert "840 s for the whole run" in page
    assert "until the latency held still" in page
    assert text.count("| Target |") == 2
    assert "Time to first audio" in text
    assert "Word error rate" in text
    assert "<h2>Speech</h2>" in page
    assert "<h2>Transcription</h2>" in page


def test_parts_of_a_mixed_load_are_rows_of_their_own(tmp_path: Path):
    run = make("speech", workload=named("3*sentences:n=8+long-texts:n=4"), loads=[closed(4)], requests=60)
    bare = json.loads(run.save(tmp_path / "run.json").read_text())
    (row,) = as_dict(build(read_run(tmp_path / "run.json")))["rows"]
    assert [part["label"] for part in row["parts"]] == ["one, long-texts:n=4", "one, sentences:n=8"]
    assert sum(part["counts"]["sent"] for part in row["parts"]) == row["counts"]["sent"] == 60
    (point,) = bare["points"]
    for part in row["parts"]:
        mine = [r for r in point["records"] if f"one, {r['part']}" == part["label"] and r["outcome"] == "ok"]
        measured = [r["end"] - r["sent"] for r in mine if point["start"] <= r["sent"] <= point["sent_until"]]
        assert part["figures"]["e2e"]["value"] == pytest.approx(float(np.median(measured)), abs=1e-9)
        ended = sum(point["start"] <= r["end"] <= point["end"] for r in mine)
        rate = ended / (point["end"] - point["start"])
        assert part["figures"]["request_throughput"]["value"] == pytest.approx(rate, abs=1e-9)
    assert "one, long-texts:n=4" in {p.name: p.read_text() for p in write_all(run, tmp_path)}["report.md"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two targets at three loads, three times, one of them on slower answers."""
    out = tmp_path_factory.mktemp("two")
    loads, scripts = [closed(1), closed(2), closed(4)], [Script(first=0.2 + 0.03 * i, gaps=(0.1,)) for i in range(7)]
    run = make(labels=("one", "two"), scripts=scripts, loads=loads, repeats=3, requests=9)
    run.save(out / "run.json")
    write_all(read_run(out / "run.json"), out)
    return out


def bare_points(bare: dict, label: str, load: str) -> list[dict]:
    return [p for p in bare["points"] if (p["label"], f"c={p['load']['level']:g}") == (label, load)]


def first_audio(point: dict) -> list[float]:
    """Of measured answers, in the order in which they were sent."""
    measured = [r for r in point["records"] if point["start"] <= r["sent"] <= point["sent_until"]]
    return [next(c[0] for c in r["chunks"] if c[1] == "content") - r["sent"] for r in measured if r["outcome"] == "ok"]


def spoken_rate(point: dict) -> float:
    """Seconds of audio a second."""
    start, end = point["start"], point["end"]
    good = [r for r in point["records"] if r["outcome"] == "ok"]
    pieces = [
        c[2] / r["sound"]["rate"] for r in good for c in r["chunks"] if c[1] == "content" and start <= c[0] <= end
    ]
    return sum(pieces) / (end - start)


def interval(values: list[float], middle, resamples: int = 2000) -> tuple[float, float]:
    """95 % of the middles of samples drawn with replacement."""
    drawn = np.random.default_rng(0).choice(np.array(values), (resamples, len(values)))
    low, high = np.quantile(np.apply_along_axis(middle, 1, drawn), [0.025, 0.975])
    return float(low), float(high)


def test_every_interval_is_derived_again(two: Path):
    bare = json.loads((two / "run.json").read_text())
    rows = json.loads((two / "report.json").read_text())["rows"]
    assert len(rows) == 6
    for row in rows:
        points = bare_points(bare, row["label"], row["load"])
        assert (row["repeats"], row["seconds"]) == (3, pytest.approx(sum(p["end"] - p["start"] for p in points)))
        firsts = [value for p in points for value in first_audio(p)]
        wanted = {"ttfa": (firsts, np.median), "audio_throughput": ([spoken_rate(p) for p in points], np.mean)}
        for name, (values, middle) in wanted.items():
            figure = row["figures"][name]
            assert (figure["low"], figure["high"]) == pytest.approx(interval(values, middle), abs=1e-9), name
            assert figure["low"] <= figure["value"] <= figure["high"]


def permuted(a: list[float], b: list[float]) -> float:
    """Two-sided p of Mann and Whitney's U over all ways to deal the values."""

    def u(x, y) -> float:
        return sum((p > q) + 0.5 * (p == q) for p in x for q in y)

    pool, seen = [*a, *b], u(a, b)
    deals = itertools.combinations(range(len(pool)), len(a))
    dealt = [u([pool[i] for i in d], [pool[i] for i in range(len(pool)) if i not in d]) for d in deals]
    share = min(np.mean([x >= seen - 1e-9 for x in dealt]), np.mean([x <= seen + 1e-9 for x in dealt]))
    return min(1.0, 2 * float(share))


def test_every_comparison_is_derived_again(two: Path):
    bare = json.loads((two / "run.json").read_text())
    found = json.loads((two / "report.json").read_text())["comparisons"]
    assert len(found) == 6
    for c in found:
        one, other = (bare_points(bare, label, c["load"]) for label in ("one", "two"))
        each = (lambda p: float(np.median(first_audio(p)))) if c["metric"] == "ttfa" else spoken_rate
        a, b = [each(p) for p in one], [each(p) for p in other]
        assert c["ratio"] == pytest.approx(np.median(b) / np.median(a), abs=1e-9)
        rng = np.random.default_rng(0)
        over, under = (np.median(rng.choice(np.array(v), (10_000, 3)), axis=1) for v in (b, a))
        assert (c["low"], c["high"]) == pytest.approx(tuple(np.quantile(over / under, [0.025, 0.975])), abs=1e-9)
        assert c["p"] == pytest.approx(permuted(a, b), abs=1e-9)


def test_every_limit_found_is_derived_again(two: Path):
    """The knee is the last step on the way up that gave 5 % more."""
    bare = json.loads((two / "run.json").read_text())
    found = json.loads((two / "report.json").read_text())["found"]
    assert [f["label"] for f in found] == ["one", "two"]
    for f in found:
        points = {p["load"]["level"]: p for p in bare["points"] if p["label"] == f["label"] and p["repeat"] == 0}
        rates = {level: spoken_rate(point) for level, point in sorted(points.items())}
        top = 1.0
        for level in (2.0, 4.0):
            if rates[level] < 1.05 * rates[top]:
                break
            top = level
        assert (f["load"]["level"], f["throughput"]) == (top, pytest.approx(rates[top], abs=1e-9))
        assert f["good"] == 100.0


NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def test_the_tables_that_people_read_show_these_numbers(two: Path):
    """Each number of the tables by load is one of report.json, rounded, in Markdown and in HTML."""
    rows = {(r["label"], r["load"]): r for r in json.loads((two / "report.json").read_text())["rows"]}
    lines = [line.strip("|").split("|") for line in (two / "report.md").read_text().splitlines() if "| c=" in line]
    page = (two / "report.html").read_text()
    table = re.findall(r"<tr[^>]*>\s*<th scope=\"row\">(one|two)</th>(.*?)</tr>", page, re.S)
    lines += [[label, *re.findall(r"<td>(.*?)</td>", cells)] for label, cells in table if "<td>c=" in cells]
    lines = [line for line in lines if line[1].strip() in ("c=1", "c=2", "c=4")]
    assert len(lines) == 12
    for label, load, counts, throughput, first, *others in ([cell.strip() for cell in line] for line in lines):
        row = rows[label, load]
        assert counts == f"{row['counts']['ok']} / {row['counts']['sent']}"
        shown = [(throughput, "audio_throughput", ("value", "low", "high")), (first, "ttfa", ("value", "low", "high"))]
        shown += [(others[0], "ttfa", ("p95",)), (others[1], "e2e", ("p95",))]
        for cell, name, parts in shown:
            figure = row["figures"][name]
            values = [figure["spread"][part] if part == "p95" else figure[part] for part in parts]
            scale = 1000 if " ms" in cell else 1
            got = [float(n) / scale for n in NUMBER.findall(cell)]
            assert got == pytest.approx(values, rel=5.1e-3), (label, load, name, cell)
