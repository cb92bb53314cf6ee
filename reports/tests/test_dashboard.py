"""The site of many runs: one series each for what may be compared, steps where there are any, every run linked."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path

import pytest

from perf.arrivals import closed
from perf.schema import Run
from reports.dashboard import write_dashboard
from reports.history import series, steps
from reports.numbers import quantity
from reports.summary import build
from reports.tests.test_parity_matrix import report, row
from reports.tests.test_reports import make
from serving.errors import SetupError


def runs(n: int) -> list[Run]:
    """The same run seen on `n` days, the last three on another machine."""
    run = make(requests=4, loads=[closed(1), closed(2)])
    days = (dataclasses.replace(run, started=f"2026-01-{i + 1:02d}T00:00:00+00:00") for i in range(n))
    return [dataclasses.replace(r, client={**r.client, "cores": 64 if i >= n - 3 else 2}) for i, r in enumerate(days)]


def test_steps_are_found_and_noise_is_not():
    rng = random.Random(0)
    flat = [rng.gauss(10, 0.3) for _ in range(40)]
    assert steps(flat) == []
    up = [v + 2 * (i >= 20) - 3 * (i >= 32) for i, v in enumerate(flat)]
    assert [at for at, _, _ in steps(up)] == [20, 32]
    (_, before, after), _ = steps(up)
    assert (before, after) == (pytest.approx(10, abs=0.3), pytest.approx(12, abs=0.3))
    assert steps([1.0, 2.0, 3.0]) == []


def test_runs_on_other_machines_are_other_series():
    found = series([build(run) for run in runs(8)])
    assert sorted({len(one.seen) for one in found}) == [3, 5]
    assert len({one.machine for one in found}) == 2


def test_the_site_links_every_run(tmp_path: Path):
    for i, run in enumerate(runs(2)):
        run.save(tmp_path / "in" / str(i) / "run.json")
    report([row(), row(rung="served", state="fail")]).write(tmp_path / "in" / "parity" / "parity.json")
    index = write_dashboard([tmp_path / "in"], tmp_path / "out")
    page = index.read_text()
    reports = sorted(p.relative_to(index.parent) for p in index.parent.rglob("*") if p != index)
    assert len(reports) == 2
    assert all(f'href="{path}"' in page for path in reports)
    assert "<script" not in page
    assert "pass 1 / 1, 25.0 % of the bound" in page
    assert "fail 0 / 1" in page
    assert "fake: throughput by load" in page
    assert re.findall(r"<th>(c=.*?)</th>", page) == ["c=1", "c=2"]
    (newest,) = [r for r in build(runs(2)[1]).rows if r.load.level == 2]
    assert f"<td>{quantity(newest.figures['ttfa'].value, 's')}</td>" in page
    with pytest.raises(SetupError, match="No run"):
        write_dashboard([tmp_path / "nowhere"], tmp_path / "out")
