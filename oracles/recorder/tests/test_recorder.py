"""Recording, from a toy reference to an accepted case, and every way in which it is refused."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from oracles import stubs
from oracles.recorder import (
    Environment,
    EnvironmentRefused,
    NotAccepted,
    RecordingFailed,
    accept,
    cases_of,
    diff,
    record,
    run,
    status,
    verify,
    worker,
)
from parity.harness import load_case

RECORD = """
import torch
from parity.harness import recipe_for

CASES = {"tiny": {"seed": 7, "width": 4}, "real": {"needs": ["weights"]}}


def record(case):
    if case.name == "real":
        case.values["text"] = case.external("weights").read_text()
        return
    model = torch.nn.Linear(case.config["width"], 3)
    recipe = recipe_for(model, case.config["seed"])
    model.load_state_dict(recipe.build())
    case.recipe(recipe)
    x = torch.ones(2, case.config["width"])
    case.inputs(x=x)
    with case.taps(model, prefix="linear"):
        y = model(x)
    case.outputs(y=y)
"""
ENV = f'python = "{sys.version_info.major}.{sys.version_info.minor}"\nbase = "current"\npins = ["safetensors>=0.5"]\n'


@pytest.fixture
def inline(monkeypatch):
    """The worker in this process: for tests of what becomes of recordings, not of how they are made."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # as `launch` has it
    monkeypatch.setattr(worker, "port_modules", lambda *_: [])
    monkeypatch.setattr(run, "launch", lambda python, request: worker.record(json.loads(json.dumps(request))))


def git(folder, *arguments):
    identity = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "project/oracles/toy"
    folder.mkdir(parents=True)
    (folder / "record.py").write_text(RECORD)
    (folder / "env.toml").write_text(ENV)
    git(tmp_path / "project", "init")
    commit(tmp_path / "project")
    return folder.parent


def commit(project):
    git(project, "add", "-A")
    git(project, "commit", "-m", "state")


def test_from_a_recorder_to_a_case_that_loads(root, inline):
    fresh, *rest = record("toy", root=root)
    assert not rest, "the case that needs weights is left out without them"
    assert fresh.manifest.references.keys() == {"safetensors"}
    assert fresh.manifest.recorded["dirty"] is False
    assert status("toy", root=root)[0].recordings == (fresh.version,)
    accept("toy", "tiny", fresh.version[:5], reason="first", root=root)
    case = load_case(root, "toy", "tiny")
    y = torch.nn.functional.linear(case["x"], *(case.recipe().build()[n] for n in ("weight", "bias")))
    assert torch.equal(case["y"], y)
    assert case.manifest.accepted["reason"] == "first"
    now = status("toy", root=root)[0]
    assert (now.version, now.age_days, now.stale, now.recordings) == (fresh.version, 0, False, ())
    assert now.size > 0
    assert all(verify("toy", "tiny", root=root))


def test_a_changed_recorder_is_seen_by_verify_diff_and_status(root, inline):
    first = record("toy", "tiny", root=root)[0]
    accept("toy", "tiny", first.version, reason="first", root=root)
    recorder = root / "toy/record.py"
    recorder.write_text(RECORD.replace("y=y", "y=y + 1e-3"))
    assert status("toy", root=root)[0].stale
    verified = verify("toy", "tiny", root=root)[0]
    assert not verified
    assert "tensors: outputs/y" in verified.moved
    commit(root.parent)
    second = record("toy", "tiny", root=root)[0]
    change = {c.name: c for c in diff("toy", "tiny", second.version, root=root)}
    assert change["outputs/y"].distance["max_abs"] == pytest.approx(1e-3, rel=1e-3)
    assert set(change) == {"outputs/y"}
    manifest = accept("toy", "tiny", second.version, reason="a shift", root=root)
    assert manifest.accepted["replaces"] == first.version


def test_files_handed_to_a_recorder_are_in_the_manifest_by_hash(root, inline, tmp_path):
    weights = tmp_path / "weights.bin"
    weights.write_text("hello")
    fresh = record("toy", "real", root=root, inputs={"weights": weights})[0]
    assert fresh.manifest.values == {"text": "hello"}
    assert fresh.manifest.externals["weights"].size == 5
    assert "--input weights=weights.bin" in fresh.manifest.recorded["command"]
    with pytest.raises(KeyError, match="--input weights=PATH"):
        record("toy", "real", root=root)


def test_the_project_one_stands_in_is_the_default(root, inline, monkeypatch):
    monkeypatch.chdir(root.parent)
    assert [row.family for row in status()] == ["toy", "toy"]
    monkeypatch.chdir(root)
    assert "whisper" in {row.family for row in status()}


def test_accept_says_no(root, inline):
    with pytest.raises(NotAccepted, match="no single recording 'abc'"):
        accept("toy", "tiny", "abc", reason="x", root=root)
    fresh = record("toy", "tiny", root=root)[0]
    with pytest.raises(NotAccepted, match="say why"):
        accept("toy", "tiny", fresh.version, reason=" ", root=root)
    (root.parent / "note.txt").write_text("x")
    with pytest.raises(NotAccepted, match=r"uncommitted changes: note\.txt"):
        accept("toy", "tiny", fresh.version, reason="x", root=root)
    dirty = record("toy", "tiny", root=root)[0]
    with pytest.raises(NotAccepted, match="from uncommitted sources"):
        accept("toy", "tiny", dirty.version, reason="x", root=root)
    (root.parent / "note.txt").unlink()
    (root / "toy/record.py").write_text(RECORD.replace("7", "8"))
    with pytest.raises(NotAccepted, match="recorder has changed"):
        accept("toy", "tiny", fresh.version, reason="x", root=root)
    assert not (root / "toy/cases").exists()


def test_recordings_are_invisible_to_git_and_accepted_cases_do_not_make_the_tree_dirty(root, inline):
    fresh = record("toy", "tiny", root=root)[0]
    assert subprocess.check_output(["git", "-C", str(root), "status", "--porcelain"]) == b""
    accept("toy", "tiny", fresh.version, reason="first", root=root)
    assert record("toy", "tiny", root=root)[0].manifest.recorded["dirty"] is False


def test_a_recorder_that_imports_the_port_is_refused(root):
    models = root.parent / "toyport"
    models.mkdir()
    (models / "__init__.py").write_text("")
    text = f"import sys\nsys.path.append({str(root.parent)!r})\nimport toyport\n" + RECORD
    (root / "toy/record.py").write_text(text)
    with pytest.raises(RecordingFailed, match=r"PortImported: toy/record\.py imported toyport"):
        record("toy", "tiny", root=root)


def test_a_recorder_that_imports_this_repository_is_refused(root):
    ours = Path(stubs.__file__).resolve().parents[2]
    text = f"import sys\nsys.path.insert(0, {str(ours)!r})\nimport models\n" + RECORD
    (root / "toy/record.py").write_text(text)
    with pytest.raises(RecordingFailed, match=r"PortImported: toy/record\.py imported models"):
        record("toy", "tiny", root=root)


def test_a_reference_may_have_a_models_package_of_its_own(root, tmp_path):
    theirs = tmp_path / "elsewhere/models"
    theirs.mkdir(parents=True)
    (theirs / "__init__.py").write_text("WIDTH = 3\n")
    start = f"import sys, torch\nsys.path.insert(0, {str(theirs.parent)!r})\nimport models\nassert models.WIDTH == 3\n"
    (root / "toy/record.py").write_text(RECORD.replace("import torch\n", start, 1))
    record("toy", "tiny", root=root)


def test_cases_are_read_without_running_the_recorder(root):
    (root / "toy/record.py").write_text("CASES: dict = {'a': {'n': 1}}\nraise RuntimeError\n")
    assert cases_of(root / "toy") == {"a": {"n": 1}}
    (root / "toy/record.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match="no CASES"):
        cases_of(root / "toy")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('python = "3.11"\nbase = "moon"', "base is 'moon'"),
        ('python = "3.11"\nbase = "empty"\npin = []', "unknown \\['pin'\\]"),
        ('python = "3.11"\nbase = "empty"\n[stubs]\na = ""', "without a reason: a"),
    ],
)
def test_an_environment_that_is_not_one(root, text, message):
    (root / "toy/env.toml").write_text(text)
    with pytest.raises(EnvironmentRefused, match=message):
        Environment.read(root / "toy/env.toml")


def test_the_current_interpreter_is_refused_where_it_lacks_a_pin(root, tmp_path):
    (root / "toy/env.toml").write_text(ENV.replace("safetensors>=0.5", "safetensors==0.0.1") + "")
    with pytest.raises(EnvironmentRefused, match=r"safetensors is .*, pinned ==0\.0\.1"):
        record("toy", "tiny", root=root)
    (root / "toy/env.toml").write_text('python = "2.7"\nbase = "current"\npins = ["nowhere==1"]')
    with pytest.raises(EnvironmentRefused, match=r"pinned 2\.7; nowhere is not installed"):
        record("toy", "tiny", root=root)


def wheel(folder, name="tinyref", version="1.0"):
    """A wheel by hand, so that nothing is fetched."""
    info = f"{name}-{version}.dist-info"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "ANSWER = 42\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_a_layered_environment_adds_pins_to_this_one_and_is_kept(root, tmp_path):
    wheel(root / "toy")
    text = ENV.replace("current", "layered").replace('"safetensors>=0.5"', "")
    (root / "toy/env.toml").write_text(text + 'no_deps = ["./tinyref-1.0-py3-none-any.whl"]\n')
    (root / "toy/record.py").write_text(RECORD.replace("import torch", "import torch, tinyref", 1))
    spec = Environment.read(root / "toy/env.toml")
    python = spec.interpreter(tmp_path / "cache")
    assert python != Path(sys.executable)
    made = (tmp_path / "cache").glob("*/complete")
    stamp = next(made).stat().st_mtime_ns
    assert spec.interpreter(tmp_path / "cache") == python
    assert next((tmp_path / "cache").glob("*/complete")).stat().st_mtime_ns == stamp
    out = subprocess.check_output([str(python), "-c", "import tinyref, safetensors; print(tinyref.ANSWER)"])
    assert out.strip() == b"42"


def test_a_stub_can_be_passed_about_and_fails_when_it_is_called():
    script = """
from oracles import stubs
stubs.install({"ghostlib": "only its video loader uses it"})
import ghostlib.video.io as io
from ghostlib import Reader
class Mine(ghostlib.Reader if False else Reader): pass
assert not isinstance(3, Reader)
def f(x: Reader | None = None) -> io.Frame[int]: ...
try:
    Reader("a")
except stubs.StubCalled as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    said = "ghostlib.Reader is a stub (only its video loader uses it), and was called"
    assert done.stdout.strip() == said, done.stderr


def test_a_stub_needs_a_reason_and_comes_before_the_module():
    with pytest.raises(ValueError, match="no reason"):
        stubs.install({"ghostlib": " "})
    with pytest.raises(ValueError, match="too late"):
        stubs.install({"torch": "why"})


def test_a_recording_that_calls_a_stub_fails(root):
    (root / "toy/env.toml").write_text(ENV + '[stubs]\nghostlib = "never called"\n')
    (root / "toy/record.py").write_text(RECORD.replace("import torch", "import torch, ghostlib", 1))
    assert record("toy", "tiny", root=root)
    (root / "toy/record.py").write_text(RECORD.replace("import torch", "import torch, ghostlib\nghostlib.f()", 1))
    with pytest.raises(RecordingFailed, match="StubCalled"):
        record("toy", "tiny", root=root)
