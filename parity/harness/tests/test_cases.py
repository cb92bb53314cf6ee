"""The case format: what is written is what is read, and any damage is noticed."""

import json
import shutil
import subprocess
import sys

import pytest
import torch

from parity.harness import numerics
from parity.harness.cases import CaseError, CaseMissing, Manifest, file_hash, load_case
from parity.harness.compare import compare
from parity.harness.recipes import Recipe, RecipeMismatch, Spec, digest, recipe_for
from parity.harness.record import Recording
from parity.harness.sources import recorder_hash, tree_hash
from parity.harness.tests import toy


@pytest.fixture
def folder(tmp_path):
    toy.record(tmp_path / "toy/cases/tiny")
    return tmp_path


def test_a_case_comes_back_as_it_was_written(folder):
    case = load_case(folder, "toy", "tiny")
    assert torch.equal(case["ids"], toy.IDS)
    assert torch.equal(case["outputs/logits"], case["logits"])
    assert case.values["tokens"] == case["logits"].argmax(-1)[0].tolist()
    assert list(case.group("taps"))[:2] == ["toy.tokens:in[0]", "toy.tokens"]
    assert not case.elsewhere()


def test_recording_twice_gives_the_same_bytes(folder, tmp_path):
    again = toy.record(tmp_path / "again")
    first = folder / "toy/cases/tiny"
    assert again.version == Manifest.read(first / "manifest.json").version
    for name in ("taps", "inputs", "outputs"):
        path = f"{name}.safetensors"
        assert file_hash(first / path) == file_hash(tmp_path / "again" / path)


def test_equal_tensors_are_stored_once(folder):
    case = load_case(folder, "toy", "tiny")
    keys = {row.key for row in case.manifest.tensors.values() if row.file == "taps.safetensors"}
    names = [name for name in case.manifest.tensors if name.startswith("taps/")]
    assert len(keys) < len(names)
    assert torch.equal(case["toy.blocks.0.mlp:in[0]"], case["toy.blocks.0.post"])


@pytest.mark.parametrize("damage", ["byte", "shape", "missing", "schema", "json"])
def test_damage_is_noticed(folder, damage):
    case = folder / "toy/cases/tiny"
    manifest = case / "manifest.json"
    if damage == "byte":
        raw = bytearray((case / "outputs.safetensors").read_bytes())
        raw[-1] ^= 1
        (case / "outputs.safetensors").write_bytes(raw)
    elif damage == "missing":
        (case / "taps.safetensors").unlink()
    elif damage == "json":
        manifest.write_text("{")
    else:
        data = json.loads(manifest.read_text())
        if damage == "schema":
            data["schema"] = 99
        else:
            data["tensors"]["outputs/logits"]["shape"] = [1]
        manifest.write_text(json.dumps(data))
    with pytest.raises(CaseError):
        load_case(folder, "toy", "tiny").tensors  # noqa: B018


def test_an_unknown_case_or_tensor_names_what_there_is(folder):
    with pytest.raises(CaseError, match="there are: tiny"):
        load_case(folder, "toy", "tinny")
    with pytest.raises(CaseError, match="logits"):
        load_case(folder, "toy", "tiny")["logit"]


def test_external_bytes_are_found_by_folder_and_hash_or_reported_missing(folder, tmp_path):
    manifest = folder / "toy/cases/tiny/manifest.json"
    data = json.loads(manifest.read_text())
    data["files"]["taps.safetensors"]["external"] = True
    manifest.write_text(json.dumps(data))
    kept = tmp_path / "kept/toy/tiny"
    kept.mkdir(parents=True)
    shutil.move(folder / "toy/cases/tiny/taps.safetensors", kept)
    with pytest.raises(CaseMissing, match="is not here"):
        load_case(folder, "toy", "tiny").tensors  # noqa: B018
    assert "toy.tokens" in load_case(folder, "toy", "tiny", search=[tmp_path / "kept"])


def test_a_sample_keeps_the_hash_of_the_whole(tmp_path):
    pen = Recording("big", {})
    whole = torch.arange(100.0).reshape(10, 10)
    pen.outputs(stride=7, table=whole)
    pen.write(tmp_path / "f/cases/big", "f", references={}, recorder="")
    case = load_case(tmp_path, "f", "big")
    assert case["table"].tolist() == list(range(0, 100, 7))
    assert case.entry("table").shape == (10, 10)
    path = tmp_path / "f/cases/big/outputs.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(CaseError, match="not those of the manifest"):
        load_case(tmp_path, "f", "big")["table"]


def test_an_external_input_is_named_when_it_is_not_given():
    with pytest.raises(KeyError, match="--input weights=PATH"):
        Recording("real", {}).external("weights")


def test_a_tensor_recorded_twice_is_an_error():
    pen = Recording("twice", {})
    pen.inputs(x=torch.ones(1))
    with pytest.raises(ValueError, match="recorded twice"):
        pen.inputs(x=torch.ones(1))


def test_a_recipe_fills_everything_and_rebuilds_the_same_everywhere():
    model, recipe = toy.loaded()
    fresh = Recipe.from_json(json.loads(json.dumps(recipe.to_json()))).build()
    assert set(fresh) == set(model.state_dict())
    for name, tensor in fresh.items():
        assert torch.equal(tensor, model.state_dict()[name])
        assert tensor.std() > 0.01, name
    assert digest(fresh) == recipe.sha256


def test_a_recipe_that_gives_something_else_is_an_error():
    _, recipe = toy.loaded()
    with pytest.raises(RecipeMismatch, match="recorded"):
        Recipe(recipe.seed + 1, recipe.tensors, recipe.sha256).build()


def test_words_of_the_generator_are_pinned():
    import numpy as np

    drawn = Spec((3,), "float64").draw(np.random.Philox(1))
    assert drawn.tolist() == [-1.5006418591209265, -1.458341807776407, -1.7120382836676098]


def test_tied_tensors_stay_tied():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 4, bias=False), "b": torch.nn.Linear(3, 4, bias=False)})
    model["b"].weight = model["a"].weight
    recipe = recipe_for(model, 0)
    assert recipe.ties == {"b.weight": "a.weight"}
    built = recipe.build()
    assert torch.equal(built["a.weight"], built["b.weight"])


def test_integer_tensors_have_their_own_draws():
    table = torch.nn.Module()
    table.register_buffer("ids", torch.zeros(50, dtype=torch.int64))
    built = recipe_for(table, 0, overrides={"ids": Spec((50,), "int64", "integer", 0.0, 5.0)}).build()
    assert set(built["ids"].tolist()) == set(range(5))


RECORDER = '''
"""A recorder."""
CASES = {"tiny": {"width": 8}}
def record(case):
    """Record it."""
    return [case.name, f"{case.config['width']:>3}"]
'''
REFORMATTED = """
# Copyright someone.
CASES = {
    'tiny': {
        'width': 8,
    },
}


def record(
    case,
):
    # says why
    return [
        case.name,
        f"{case.config['width']:>3}",
    ]
"""


def test_reformatting_a_recorder_changes_nothing_and_another_constant_does():
    assert tree_hash(RECORDER) == tree_hash(REFORMATTED)
    assert tree_hash(RECORDER) != tree_hash(RECORDER.replace("8", "9"))
    assert tree_hash(RECORDER) != tree_hash(RECORDER.replace("case.name", "case.config"))


def test_the_environment_is_part_of_the_recorder_by_meaning(tmp_path):
    (tmp_path / "record.py").write_text(RECORDER)
    (tmp_path / "env.toml").write_text('python = "3.11"\npins = ["a==1"]\n')
    before = recorder_hash(tmp_path)
    (tmp_path / "env.toml").write_text('# why\npins = [\n "a==1",\n]\npython = "3.11"\n')
    assert recorder_hash(tmp_path) == before
    (tmp_path / "env.toml").write_text('pins = ["a==2"]\npython = "3.11"\n')
    assert recorder_hash(tmp_path) != before


def test_flags_are_set_and_put_back():
    before = numerics.settable()
    with numerics.applied({**numerics.EXACT, "threads": 1, "matmul_precision": "high", "attention": ["math"]}):
        assert numerics.settable()["attention"] == ["math"]
        assert torch.get_float32_matmul_precision() == "high"
    assert numerics.settable() == before


def test_a_flag_that_does_not_take_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    flags = {"threads": torch.get_num_threads() + 1}
    monkeypatch.setitem(numerics.SETTABLE, "threads", numerics.Flag(torch.get_num_threads, lambda _: None))
    with pytest.raises(numerics.Refused, match="needs threads="), numerics.applied(flags):
        pytest.fail("the block must not run")


def test_a_flag_of_a_later_harness_is_refused():
    with pytest.raises(numerics.Refused, match="unknown here"), numerics.applied({"warp": 9}):
        pytest.fail("the block must not run")


def test_another_cpu_capability_is_another_platform(folder):
    script = (
        "from pathlib import Path; from parity.harness.cases import load_case;"
        f"print(sorted(load_case(Path({str(folder)!r}), 'toy', 'tiny').elsewhere()))"
    )
    environment = {
        "ATEN_CPU_CAPABILITY": "default",
        "PYTHONPATH": ":".join(sys.path),
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert "cpu_capability" in done.stdout


def test_the_toy_is_reproduced_by_its_recipe(folder):
    case = load_case(folder, "toy", "tiny")
    model = toy.Toy().eval()
    model.load_state_dict(case.recipe().build())
    with numerics.applied(case.manifest.settable), torch.no_grad():
        assert compare(case["logits"], model(case["ids"]), "exact")
