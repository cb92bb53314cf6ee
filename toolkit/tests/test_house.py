"""The rules of the house, each checked on the tree and shown to fail on a planted breach."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from models import registry

ROOT = Path(__file__).resolve().parents[2]
ORDER = ("toolkit", "reports", "perf", "parity", "oracles", "models", "serving")  # imports run downward only
PORT_MAY = (
    "serving.attention",
    "serving.core.contract",
    "serving.core.streams",
    "serving.errors",
    "serving.resources",
)
REFERENCE = re.compile(
    r"(transformers\.(models\..*\.)?(modeling|image_processing|processing|feature_extraction)_.*|transformers\.pipelines.*"
    r"|diffusers(\..*)?|whisper(\..*)?|kokoro(\..*)?|chatterbox(\..*)?|faster_whisper(\..*)?|ctranslate2(\..*)?|onnxruntime(\..*)?)"
)
FAMILY_FILES = {"__init__.py", "config.py", "modules.py", "weights.py", "graph.py", "request.py", "media.py"}


def imports(source):
    """Every module that the source imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant))


def product(package):
    return [
        path
        for path in (ROOT / package).rglob("*.py")
        if "tests" not in path.parts
        and not path.name.startswith(("test_", "conftest"))
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)  # references' environments
    ]


def upward(package, source):
    """Imports of a package that stands above. The harness stands apart: it needs nothing of ours."""
    above = ORDER[: ORDER.index(package)]
    names = [name for name in imports(source) if name != "parity.harness" and not name.startswith("parity.harness.")]
    return [name for name in names if name.split(".")[0] in above]


def beyond_the_contract(source):
    """What a port imports of `serving` that it may not."""
    return [
        name
        for name in imports(source)
        if name.startswith("serving.")
        and not any(name == may or name.startswith(may + ".") or may.startswith(name + ".") for may in PORT_MAY)
    ]


def reference_code(source):
    return [name for name in imports(source) if REFERENCE.fullmatch(name)]


@pytest.mark.parametrize("package", ORDER)
def test_imports_run_downward(package):
    assert {str(path): found for path in product(package) if (found := upward(package, path.read_text()))} == {}


def test_ports_know_the_contract_and_no_more_of_serving():
    found = {str(path): beyond_the_contract(path.read_text()) for path in product("models")}
    assert {path: names for path, names in found.items() if names and not path.endswith("models/registry.py")} == {}


def test_ports_do_not_run_the_reference():
    found = {str(path): reference_code(path.read_text()) for path in product("models")}
    assert {path: names for path, names in found.items() if names} == {}


def test_recorders_do_not_import_ports():
    recorders = (ROOT / "oracles").rglob("record.py")
    found = {str(path): [n for n in imports(path.read_text()) if n.split(".")[0] == "models"] for path in recorders}
    assert {path: names for path, names in found.items() if names} == {}


def test_the_harness_stands_alone():
    inside = ("parity.harness",)
    found = {
        str(path): [n for n in imports(path.read_text()) if n.split(".")[0] in ORDER and not n.startswith(inside)]
        for path in product("parity/harness")
    }
    assert {path: [n for n in names if n != "parity"] for path, names in found.items() if set(names) - {"parity"}} == {}


@pytest.mark.parametrize(
    ("rule", "breach"),
    [
        (lambda s: upward("serving", s), "def f():\n    from models import registry"),
        (lambda s: upward("models", s), "import parity.invariants.kit"),
        (beyond_the_contract, "from serving.core.engine import Engine"),
        (beyond_the_contract, "from serving.api import app"),
        (reference_code, "from transformers.models.whisper.modeling_whisper import WhisperModel"),
        (reference_code, "import importlib\nimportlib.import_module('diffusers')"),
        (reference_code, "from whisper.decoding import decode"),
    ],
)
def test_each_import_rule_catches_its_breach(rule, breach):
    assert rule(breach)


def misplaced(folder):
    """What a family's folder lacks of the common file names."""
    return FAMILY_FILES - {path.name for path in folder.iterdir()} - {"weights.py"}


@pytest.mark.parametrize("family", sorted(registry.families()))
def test_every_family_has_the_common_files(family):
    assert misplaced(ROOT / "models" / family) == set()


def test_a_family_that_names_its_files_otherwise_is_caught(tmp_path):
    (tmp_path / "model.py").touch()
    assert "modules.py" in misplaced(tmp_path)


@pytest.mark.parametrize("key", sorted(registry.cards()))
def test_every_key_has_a_deployment(key):
    assert (ROOT / "configs" / f"{key}.yaml").is_file()


def size_meter():
    spec = importlib.util.spec_from_file_location("size", ROOT / ".ci" / "size.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_size_meter_passes_here_and_fails_where_it_should(tmp_path):
    meter = size_meter()
    assert meter.measure(ROOT)[1] == []
    (tmp_path / "models").mkdir()
    lines = "\n".join(f"    x = {i}" for i in range(70))
    (tmp_path / "models" / "big.py").write_text(f"def long():\n{lines}\n" + "\n" * 600)
    report, broken = meter.measure(tmp_path)
    assert len(broken) == 3
    assert "1 files" in report


def test_the_map_of_the_core_names_every_module():
    text = (ROOT / "docs" / "architecture.md").read_text()
    modules = {path.stem for path in (ROOT / "serving" / "core").glob("*.py")} - {"__init__"}
    assert {name for name in modules if f"`{name}`" not in text} == set()
