"""The plugin in projects of their own: one test an option, one a state, under xdist, beside other plugins."""

import json
import os
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch

from parity.harness.ledger import Ledger
from parity.harness.record import Recording
from parity.harness.schema import Report
from parity.harness.sources import recorder_hash
from parity.harness.tests import toy

ROOT = Path(__file__).resolve().parents[3]
ENTRY = """
[toy.tiny."{tap}".float32.cpu]
bound = {bound}
portable = {portable}
observed = 0.0
hardware = "somewhere"
date = 2026-01-02
reason = "{reason}"
"""
SUITE = """
import pytest, torch
from parity.harness.tests import toy

@pytest.fixture
def model(oracle):
    case = oracle("toy", "tiny")
    model = toy.Toy().eval()
    model.load_state_dict(case.recipe().build())
    return case, model

def test_toy_logits(model, check):
    case, network = model
    with torch.no_grad():
        check(case, "logits", network(case["ids"]))
"""


def entry(tap="logits", bound=0.0, portable=1e-4, reason="the same operations"):
    return ENTRY.format(tap=tap, bound=bound, portable=portable, reason=reason)


@pytest.fixture
def project(pytester, monkeypatch):
    """A project with a recorded case, a ledger with one entry and a suite with one test."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("TOOLKIT_WEIGHTS", raising=False)
    folder = pytester.path / "oracles/toy"
    folder.mkdir(parents=True)
    (folder / "record.py").write_text("CASES = {'tiny': {}}\n")
    toy.record(folder / "cases/tiny", recorder=recorder_hash(folder), recorded={"date": "2026-01-02"})
    pytester.path.joinpath("parity").mkdir()
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    ledger(pytester, entry())
    pytester.makepyfile(test_toy=SUITE)
    return pytester


def ledger(pytester, text):
    (pytester.path / "parity/tolerances.toml").write_text(text)


def run(pytester, *arguments):
    # Hypothesis's plugin imports hypothesis at the end of every run: seconds, when each run starts afresh.
    options = ("-p", "parity.harness.plugin", "-p", "no:hypothesispytest", "-p", "no:asyncio")
    return pytester.runpytest(*options, "-W", "ignore::pytest.PytestAssertRewriteWarning", *arguments)


def report(pytester):
    return Report.read(pytester.path / "parity.json")


def suite(pytester, body, name="test_more"):
    pytester.makepyfile(**{name: f"import pytest, torch\nfrom parity.harness.tests import toy\n{body}"})


def test_a_port_that_computes_the_same_passes(project):
    done = run(project, "--parity-report", "parity.json")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["parity: 1 pass, 0 portable, 0 fail, 0 stale, 0 refused, 0 not-run"])
    found = report(project)
    assert found.full
    assert found.summary["pass"] == 1
    assert (found.rows[0].key, found.rows[0].tap, found.rows[0].state) == ("toy", "logits", "pass")
    assert found.rows[0].recorded == "2026-01-02"
    assert found.tests[0].keys == ["toy"]


def test_a_port_that_is_wrong_fails_with_the_bound_and_the_command(project):
    suite(
        project,
        "def test_toy_wrong(oracle, check):\n    case = oracle('toy', 'tiny')\n"
        "    check(case, 'logits', case['logits'] + 1e-3)\n",
    )
    done = run(project, "--parity-report", "parity.json")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(
        [
            "*toy.tiny.logits: FAIL max_abs 0.001*, needs <= 0",
            "*smallest passing tolerance: max_abs <= 0.00*",
            "*worst at [[]0, *]: expected *, got *",
            "*reproduce: pytest test_more.py::test_toy_wrong --parity-bisect",
        ]
    )
    assert report(project).summary["fail"] == 1


def test_a_tap_without_an_entry_fails_and_option_propose_writes_one(project):
    ledger(project, "")
    done = run(project, "--parity-propose", "proposed.toml")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*the ledger has no [[]toy.tiny.logits.float32.cpu[]]*"])
    written = Ledger.load(project.path / "proposed.toml")
    assert [place.tap for place in written.entries] == ["logits"]
    assert "a bound needs a reason" in written.lint()[0]


def test_an_entry_without_a_reason_does_not_hold(project):
    ledger(project, entry(reason=""))
    done = run(project)
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*a bound needs a reason*"])


def test_a_changed_recorder_makes_the_case_stale_and_a_reformatted_one_does_not(project):
    recorder = project.path / "oracles/toy/record.py"
    recorder.write_text("# why\nCASES = {\n    'tiny': {},\n}\n")
    run(project).assert_outcomes(passed=1)
    recorder.write_text("CASES = {'tiny': {'width': 8}}\n")
    done = run(project, "--parity-report", "parity.json", "--junitxml", "junit.xml")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*STALE test_toy.py::test_toy_logits: toy/tiny was recorded by another*", "*1 stale*"])
    assert report(project).summary["stale"] == 1
    assert properties(project)["parity_state"] == "stale"


def properties(pytester):
    rows = ET.parse(pytester.path / "junit.xml").iter("property")
    return {row.get("name"): row.get("value") for row in rows}


def rewrite(pytester, **changes):
    path = pytester.path / "oracles/toy/cases/tiny/manifest.json"
    data = json.loads(path.read_text())
    for name, value in changes.items():
        data[name] |= value
    path.write_text(json.dumps(data))


def test_a_flag_that_does_not_take_is_refused(project):
    rewrite(project, settable={"warp": 9})
    done = run(project, "--parity-report", "parity.json", "--junitxml", "junit.xml")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*REFUSED *'warp' is unknown here*"])
    assert report(project).summary["refused"] == 1
    assert properties(project)["parity_state"] == "refused"


def test_elsewhere_is_portable_and_held_to_the_wider_bound(project):
    rewrite(project, platform={"processor": "AbacusInside"})
    suite(
        project,
        "@pytest.mark.parametrize('off', [1e-5, 1e-3])\n"
        "def test_toy_off(oracle, check, off):\n    case = oracle('toy', 'tiny')\n"
        "    check(case, 'logits', case['logits'] + off)\n",
    )
    done = run(project, "--parity-report", "parity.json", "--junitxml", "junit.xml")
    done.stdout.fnmatch_lines(["*PORTABLE *processor AbacusInside -> *", "*1 failed*2 portable*"])
    assert report(project).summary == {
        "pass": 0, "portable": 2, "fail": 1, "stale": 0, "refused": 0, "not-run": 0
    }  # fmt: skip
    assert "parity_state" in properties(project)


def test_a_forced_instruction_set_is_portable(project):
    done = project.run(
        "env", "ATEN_CPU_CAPABILITY=default", sys.executable, "-m", "pytest", "-p", "parity.harness.plugin"
    )
    done.stdout.fnmatch_lines(["*PORTABLE *cpu_capability * -> DEFAULT*", "*1 portable*"])
    assert done.ret == 0


def test_missing_weights_are_not_run_and_option_weights_finds_them(project, monkeypatch):
    suite(project, "def test_toy_real(weights):\n    assert weights('toy.bin').read_text() == 'x'\n")
    done = run(project, "--parity-report", "parity.json", "--junitxml", "junit.xml")
    done.stdout.fnmatch_lines(["*NOT-RUN *: no real weights 'toy.bin' here*", "*1 passed*1 not run*"])
    assert done.ret == 0
    assert report(project).summary["not-run"] == 1
    assert "not-run" in (project.path / "junit.xml").read_text()
    (project.path / "real").mkdir()
    (project.path / "real/toy.bin").write_text("x")
    run(project, "--parity-weights", "real").assert_outcomes(passed=2)
    monkeypatch.setenv("TOOLKIT_WEIGHTS", str(project.path / "real"))
    run(project).assert_outcomes(passed=2)


def test_external_bytes_that_are_not_here_are_not_run(project):
    rewrite(project, externals={"weights": {"sha256": "0" * 64, "size": 3, "external": True}})
    suite(project, "def test_toy_real(oracle):\n    oracle('toy', 'tiny').external('weights')\n")
    done = run(project, "--parity-report", "parity.json")
    done.stdout.fnmatch_lines(["*NOT-RUN *no file with sha256 000000000000*"])
    assert report(project).summary == {
        "pass": 1, "portable": 0, "fail": 0, "stale": 0, "refused": 0, "not-run": 1
    }  # fmt: skip


def test_an_unused_entry_fails_a_full_run_and_option_warn_unused_lets_it(project):
    ledger(project, entry() + entry("gone") + entry("kept").replace("[toy.", "[other."))
    done = run(project)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["unused ledger entry: [[]toy.tiny.gone.float32.cpu[]]"])
    done.stdout.no_fnmatch_line("*kept*")
    assert run(project, "--parity-warn-unused").ret == 0
    assert run(project, "-k", "logits").ret == 0
    assert run(project, "test_toy.py").ret == 0


def test_an_unused_entry_of_a_case_that_did_not_finish_is_not_dead(project):
    ledger(project, entry() + entry("gone"))
    suite(project, "def test_toy_real(weights):\n    weights('toy.bin')\n")
    assert run(project).ret == 0


def test_slack_is_flagged(project):
    ledger(project, entry(bound=1e-3, portable=1e-3))
    done = run(project)
    assert done.ret == 0
    done.stdout.fnmatch_lines(["slack, more than 10 times *: [[]toy.tiny.logits.float32.cpu[]]"])


def test_option_tighten_pulls_bounds_and_never_loosens(project):
    ledger(project, entry(bound=1e-3, portable=1e-3))
    run(project, "--parity-tighten").stdout.fnmatch_lines(["tightened 1 entries*"])
    path = project.path / "parity/tolerances.toml"
    assert next(iter(Ledger.load(path).entries.values())).bound == 0.0
    before = path.read_text()
    project.makepyfile(test_toy=SUITE.replace('network(case["ids"]))', 'network(case["ids"]) + 1.0)'))
    done = run(project, "--parity-tighten")
    done.assert_outcomes(failed=1)
    assert path.read_text() == before


NETWORK = """
@pytest.mark.parametrize("fault", ["", "transposed weight at blocks.1.attention.value"])
def test_toy_network(oracle, check, fault):
    from parity.harness import faults
    from contextlib import nullcontext
    case = oracle("toy", "tiny")
    network, _ = toy.loaded()
    found = [p for p in faults.plantable(network) if str(p) == fault]
    with found[0].plant() if found else nullcontext():
        check.network(case, network, lambda: network(case["ids"]), prefix="toy")
"""


def test_option_bisect_names_the_layer(project):
    ledger(project, entry() + entry("toy*"))
    suite(project, NETWORK)
    done = run(project)
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["*taps are out of bounds*", "*add --parity-bisect to tell*"])
    done = run(project, "--parity-bisect")
    done.stdout.fnmatch_lines(
        [
            "*first divergence: toy.blocks.1.attention.value (wrong here)",
            "*toy.blocks.1.attention.out *inherited",
        ]
    )


def test_a_packed_batch_of_one_is_compared_where_the_suite_says_so(project):
    suite(
        project,
        "@pytest.mark.parametrize('squeeze', [True, False])\n"
        "def test_toy_packed(oracle, check, squeeze):\n    case = oracle('toy', 'tiny')\n"
        "    check(case, 'logits', case['logits'][0], squeeze=squeeze)\n",
    )
    done = run(project)
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["*shapes differ: expected [[]1, 6, 20[]], got [[]6, 20[]]*"])


def test_a_difference_beside_the_sample_fails_an_exact_gate(project):
    folder = project.path / "oracles/toy"
    pen = Recording("big", {})
    pen.outputs(stride=7, table=torch.arange(100.0))
    pen.write(folder / "cases/big", "toy", references={}, recorder=recorder_hash(folder))
    ledger(project, entry() + entry("table").replace(".tiny.", ".big."))
    suite(
        project,
        "@pytest.mark.parametrize('at', [0, 7, 8, None])\n"
        "def test_toy_big(oracle, check, at):\n    table = torch.arange(100.0)\n"
        "    if at is not None:\n        table[at] += 1\n    check(oracle('toy', 'big'), 'table', table)\n",
    )
    done = run(project)
    done.assert_outcomes(passed=2, failed=3)
    done.stdout.fnmatch_lines(["*the recorded sample is equal, but the whole tensor is not*"])


def test_controls_demand_that_the_gate_catches_every_fault(project):
    ledger(project, entry() + entry("toy*"))
    suite(
        project,
        """
@pytest.mark.parametrize("bound", [0.0, 1e-3])
def test_toy_controls(oracle, check, bound):
    from parity.harness import compare
    case = oracle("toy", "tiny")
    network, _ = toy.loaded()
    def gate():
        with torch.no_grad():
            return compare(case["logits"], network(case["ids"]), "max_abs", bound)
    check.controls(network, lambda: network(case["ids"]), gate)
""",
    )
    done = run(project, "--parity-report", "parity.json", "--parity-warn-unused")
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["*the gate lets these faults through: *wrong epsilon*"])
    assert max(test.controls for test in report(project).tests) > 20


def test_elsewhere_a_control_that_the_wider_bound_hides_must_still_move_something(project):
    rewrite(project, platform={"processor": "AbacusInside"})
    ledger(project, entry(portable=1e9))
    suite(
        project,
        """
@pytest.mark.parametrize("stuck", [False, True])
def test_toy_controls(oracle, check, stuck):
    case = oracle("toy", "tiny")
    network, _ = toy.loaded()
    with torch.no_grad():
        clean = network(case["ids"])
    def gate():
        with torch.no_grad():
            return check.measure(case, "logits", network(case["ids"]))
    check.controls(network, lambda: clean if stuck else network(case["ids"]), gate)
""",
    )
    done = run(project, "--parity-warn-unused")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*the gate lets these faults through: *wrong epsilon*", "*1 failed*2 portable*"])


def test_one_number_is_held_to_the_ledger_too(project):
    text = entry("wer").replace("bound = 0.0\n", 'metric = "wer"\nbound = 0.05\n').replace("float32", "float64")
    ledger(project, entry() + text.replace("portable = 0.0001\n", ""))
    suite(
        project,
        "@pytest.mark.parametrize('rate', [0.04, 0.06])\n"
        "def test_toy_wer(oracle, check, rate):\n"
        "    check.value(oracle('toy', 'tiny', rung='real'), 'wer', rate, 'wer')\n",
    )
    done = run(project, "--parity-report", "parity.json")
    done.assert_outcomes(passed=2, failed=1)
    assert {(row.rung, row.metric) for row in report(project).rows} == {("tap", "max_abs"), ("real", "wer")}


def test_option_device_reaches_the_suite(project):
    suite(project, "def test_toy_device(parity_device):\n    assert parity_device == 'meta'\n")
    run(project, "--parity-device", "meta").assert_outcomes(passed=2)
    run(project).assert_outcomes(passed=1, failed=1)


def test_the_report_is_the_same_from_two_workers(project):
    suite(project, "def test_toy_real(weights):\n    weights('toy.bin')\n")
    ledger(project, entry() + entry("gone"))
    one = run(project, "--parity-report", "parity.json")
    alone = report(project)
    two = run(project, "-n", "2", "--parity-report", "parity.json", "--junitxml", "junit.xml")
    assert one.ret == two.ret == 0
    both = report(project)
    key = lambda row: (row.test, row.tap)  # noqa: E731
    assert sorted(both.rows, key=key) == sorted(alone.rows, key=key)
    assert (both.summary, both.full) == (alone.summary, True)
    two.stdout.fnmatch_lines(["*1 passed*1 not run*"])
    assert "parity_state" in (project.path / "junit.xml").read_text()


def test_a_selection_on_workers_is_not_a_full_run(project):
    ledger(project, entry() + entry("gone"))
    suite(project, "def test_toy_other():\n    pass\n")
    assert run(project, "-n", "1", "-k", "logits").ret == 0
    assert run(project, "-k", "test_toy").ret == 0


CONFTEST = """
from contextlib import contextmanager
import pytest

def pytest_parity_load(key, options, config):
    return {"key": key, **options, "n": len(LOADED) if LOADED.append(key) else len(LOADED)}

LOADED = []

@contextmanager
def serve(key):
    print("started", key)
    yield f"http://127.0.0.1/{key}"
    print("stopped", key)

def pytest_parity_serve(key, options, config):
    return serve(key)
"""


def test_ports_and_servers_come_from_the_projects_hooks_once_a_session(project):
    project.makeconftest(CONFTEST)
    suite(
        project,
        "def test_toy_a(port, served):\n"
        "    assert port('toy', rows=2) is port('toy', rows=2)\n"
        "    assert port('toy', rows=3)['rows'] == 3\n"
        "    assert served('toy') == 'http://127.0.0.1/toy'\n"
        "def test_toy_b(port, served):\n"
        "    assert port('toy', rows=2)['n'] == 1\n"
        "    served('toy')\n",
    )
    done = run(project, "-s", "--parity-report", "parity.json")
    done.assert_outcomes(passed=3)
    assert done.stdout.str().count("started toy") == done.stdout.str().count("stopped toy") == 1
    assert {tuple(test.keys) for test in report(project).tests} >= {("toy",) * 4}


def test_a_project_without_hooks_is_told_which_one_to_write(project):
    suite(project, "def test_toy_a(port):\n    port('toy')\n")
    run(project).stdout.fnmatch_lines(["*no conftest.py or plugin implements pytest_parity_load for 'toy'*"])


def test_beside_a_models_package_and_a_plugin_with_an_option_device(project):
    """Nothing of ours is in the way of a project that uses the same everyday names."""
    (project.path / "models").mkdir()
    (project.path / "models/__init__.py").write_text("WIDTH = 3\n")
    (project.path / "device_plugin.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--device', default='abacus')\n"
    )
    suite(
        project,
        "def test_toy_names(request, oracle):\n"
        "    import models\n"
        "    assert models.WIDTH == 3\n"
        "    assert request.config.getoption('--device') == 'abacus'\n"
        "    oracle('toy', 'tiny')\n",
    )
    environment = {**os.environ, "PYTHONPATH": f"{project.path}{os.pathsep}{ROOT}"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environment["PYTHONPATH"])
        done = project.runpytest_subprocess("-p", "device_plugin", "-p", "parity.harness.plugin")
    done.assert_outcomes(passed=2)


def test_the_harness_imports_nothing_of_ours_but_itself():
    ours = {path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} - {"parity"}
    assert {"models", "serving", "oracles"} <= ours
    pattern = re.compile(rf"^\s*(?:from|import) ({'|'.join(sorted(ours))}|parity\.(?!harness))\b", re.M)
    for path in (ROOT / "parity/harness").rglob("*.py"):
        assert not pattern.findall(path.read_text()), path


def test_every_option_is_named_after_the_harness(pytester):
    text = (ROOT / "parity/harness/plugin.py").read_text()
    options = re.findall(r'add\("(--[a-z-]+)"', text)
    assert options
    assert all(option.startswith("--parity-") for option in options)
    tested = Path(__file__).read_text()
    assert [option for option in options if option not in tested.replace(text, "")] == []


def test_the_schema_of_the_report_is_json():
    from parity.harness.schema import schema

    assert json.loads(json.dumps(schema()))["title"] == "Report"
