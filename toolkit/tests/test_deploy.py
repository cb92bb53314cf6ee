"""From a deployment to an application: what the parity suite found is shown, and what cannot be read is said."""

from __future__ import annotations

import pytest

from parity.harness.schema import Report
from parity.harness.schema import Test as Case
from serving.errors import SetupError
from serving.settings import Deployment
from toolkit.deploy import parity_states


def report(path, **states):
    pairs = [(key, state) for key, found in states.items() for state in found]
    tests = [Case(id=f"test_{i}", state=state, keys=[key]) for i, (key, state) in enumerate(pairs)]
    whole = {"created": "2026-01-01T00:00:00Z", "arguments": [], "platform": {}, "full": True, "summary": {}}
    Report(**whole, tests=tests, rows=[]).write(path)
    return str(path)


def test_the_worst_state_of_a_key_is_its_state(tmp_path):
    file = report(tmp_path / "parity.json", toy=["pass", "pass"], whisper=["pass", "fail", "stale"], kokoro=["stale"])
    chosen = [Deployment(model=key, parity=file) for key in ("toy", "whisper", "whisper_tiny_en")]
    assert parity_states([*chosen, Deployment(model="kokoro")]) == {"toy": "pass", "whisper": "fail"}


def test_what_is_no_report_stops_the_start(tmp_path):
    other = tmp_path / "other.json"
    other.write_text("{}")
    for file, says in ((other, "not a parity.json"), (tmp_path / "nothing.json", "No such file")):
        with pytest.raises(SetupError, match=says):
            parity_states([Deployment(model="toy", parity=str(file))])
