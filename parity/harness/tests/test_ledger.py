"""The ledger: what it accepts, what it refuses, and that tightening never loosens and leaves the rest of
the file.
"""

import math

import pytest

from parity.harness.ledger import Entry, Ledger, LedgerError, Place, matches, number, proposal

TEXT = """\
# Why this file is what it is.

[toy.tiny."blocks.*".float32.cpu]
metric = "max_abs"  # the default
bound = 1e-3
portable = 1e-2
observed = 1e-4
hardware = "somewhere"
date = 2026-01-02
reason = "another order of sums"

# The end of the model.
[toy.tiny.logits.float32.cpu]
bound = 0.0
portable = 1e-5
observed = 0.0
hardware = "somewhere"
date = 2026-01-02
reason = "the same operations"

[toy.tiny.wave.float32.cpu]
metric = "snr"
bound = 40.0
observed = 90.0
hardware = "somewhere"
date = 2026-01-02
reason = "phase"
"""


def place(tap, case="tiny", device="cpu"):
    return Place("toy", case, tap, "float32", device)


@pytest.fixture
def ledger(tmp_path):
    (tmp_path / "t.toml").write_text(TEXT)
    return Ledger.load(tmp_path / "t.toml")


def test_the_exact_tap_counts_before_a_pattern_and_the_longest_pattern_before_others(ledger):
    wide = Entry(place("*"), bound=1.0)
    ledger.entries[wide.place] = wide
    assert ledger.find(place("logits")).bound == 0.0
    assert ledger.find(place("blocks.3.attn[0]")).bound == 1e-3
    assert ledger.find(place("other")).bound == 1.0
    assert ledger.find(place("logits", device="cuda")) is None
    assert ledger.find(place("logits", case="other")) is None


def test_brackets_in_a_tap_are_not_a_pattern():
    assert matches("attn[0]", "attn[0]")
    assert not matches("attn[0]", "attn0")
    assert matches("a.*.b", "a.1.2.b")


def test_the_gate_depends_on_the_platform(ledger):
    entry = ledger.find(place("logits"))
    assert entry.gate(portable=False) == ("max_abs", 0.0)
    assert entry.gate(portable=True) == ("max_abs", 1e-5)
    assert Entry(place("x"), "exact", portable=1e-6).gate(portable=True) == ("max_abs", 1e-6)
    assert Entry(place("x"), "snr", 40.0).gate(portable=True) == ("snr", 40.0)


def test_a_good_ledger_passes_the_lint(ledger):
    assert ledger.lint() == []


@pytest.mark.parametrize(
    ("find", "replace", "fault"),
    [
        ('reason = "phase"', 'reason = " "', "needs a reason"),
        ('reason = "phase"', "", "needs a reason"),
        ('hardware = "somewhere"', 'hardware = ""', "needs the hardware"),
        ("date = 2026-01-02", 'date = "yesterday"', "not YYYY-MM-DD"),
        ("observed = 90.0", "observed = 30.0", "observed distance that meets it"),
        ("observed = 90.0", "", "observed distance that meets it"),
        ("portable = 1e-2", "portable = 1e-4", "portable bound is tighter"),
        ('metric = "snr"', 'metric = "snort"', "metric 'snort'"),
    ],
)
def test_the_lint_names_every_breach(tmp_path, find, replace, fault):
    assert find in TEXT
    (tmp_path / "t.toml").write_text(TEXT.replace(find, replace))
    assert any(fault in line for line in Ledger.load(tmp_path / "t.toml").lint())


@pytest.mark.parametrize("text", ["[toy]\nbound = 1", "[a.b.c.d.e]\nbond = 1", "nonsense", "[a.b.c.d]\nbound=1.0"])
def test_what_is_no_ledger_is_refused(tmp_path, text):
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(LedgerError):
        Ledger.load(tmp_path / "t.toml")


def test_slack_is_flagged(ledger):
    assert [entry.place.tap for entry in ledger.slack()] == ["wave"]
    assert {entry.place.tap for entry in ledger.slack(limit=5)} == {"wave", "blocks.*"}


def test_unused_entries_of_the_families_that_ran(ledger):
    ledger.find(place("logits"))
    assert {p.tap for p in ledger.unused(["toy"])} == {"blocks.*", "wave"}
    assert ledger.unused(["other"]) == []


def test_tightening_keeps_comments_and_the_order_and_writes_what_was_seen(ledger):
    changed = ledger.tighten({place("blocks.*"): [1e-6, 3e-6], place("wave"): [88.0, 91.0]}, "here")
    text = ledger.path.read_text()
    assert changed == 2
    assert text.startswith("# Why this file is what it is.\n")
    assert "# The end of the model." in text
    fresh = Ledger.load(ledger.path)
    assert fresh.lint() == []
    blocks, wave = fresh.find(place("blocks.1")), fresh.find(place("wave"))
    assert (blocks.bound, blocks.observed, blocks.hardware, blocks.portable) == (6e-6, 3e-6, "here", 1e-2)
    assert 40.0 < wave.bound <= 88.0
    assert fresh.find(place("logits")) == ledger.find(place("logits"))


@pytest.mark.parametrize("seen", [1e-3, 0.5, math.inf, math.nan])
def test_tightening_never_loosens(ledger, seen):
    assert ledger.tighten({place("blocks.*"): [seen]}, "here") == 0
    assert ledger.path.read_text() == TEXT
    assert ledger.tighten({place("wave"): [3.0]}, "here") == 0


def test_a_bound_for_other_platforms_is_tightened_on_its_own(ledger):
    assert ledger.tighten({place("blocks.*"): [2e-5]}, "there", portable=True) == 1
    entry = Ledger.load(ledger.path).find(place("blocks.1"))
    assert (entry.bound, entry.portable, entry.hardware) == (1e-3, 1e-3, "somewhere")


def test_a_proposal_is_a_ledger_but_for_its_reason(tmp_path):
    entry = proposal(place("attn[0]"), "max_abs", 3.21e-7, "here")
    (tmp_path / "t.toml").write_text(entry.toml())
    fresh = Ledger.load(tmp_path / "t.toml")
    assert fresh.find(place("attn[0]")) == entry
    assert fresh.lint() == [f"{entry.place.header()}: a bound needs a reason"]


@pytest.mark.parametrize("value", [0.0, 1.0, 2e-6, 0.999998, math.inf, 123456.0])
def test_numbers_come_back(value):
    import tomllib

    assert tomllib.loads(f"x = {number(value)}")["x"] == value
