"""Settings are strict: each source refuses what no setting has, and names the nearest."""

from __future__ import annotations

import pytest

from serving.errors import SetupError
from serving.settings import ServerSettings, load_deployment, load_settings


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ("TOOLKIT_PORT", "TOOLKIT_LIMITS__N", "TOOLKIT_API_KEYS"):
        monkeypatch.delenv(name, raising=False)


def test_precedence_is_command_line_environment_file_default(tmp_path, monkeypatch):
    file = tmp_path / "server.yaml"
    file.write_text("port: 1\nlimits: {n: 2, images: 3}\nqueue_size: 4\n")
    monkeypatch.setenv("TOOLKIT_LIMITS__N", "5")
    monkeypatch.setenv("TOOLKIT_PORT", "6")
    settings = load_settings(file, port=7)
    assert (settings.port, settings.limits.n, settings.limits.images, settings.queue_size) == (7, 5, 3, 4)
    assert settings.host == ServerSettings().host


@pytest.mark.parametrize(
    ("source", "nearest"),
    [("prot: 1", "port"), ("limits: {image: 1}", "images"), ("timeouts: {idle_outputs: 1}", "idle_output")],
)
def test_an_unknown_key_in_a_file_names_the_nearest(tmp_path, source, nearest):
    file = tmp_path / "server.yaml"
    file.write_text(source)
    with pytest.raises(SetupError, match=f'Did you mean "{nearest}"'):
        load_settings(file)


def test_an_unknown_variable_names_the_nearest(monkeypatch):
    monkeypatch.setenv("TOOLKIT_PROT", "1")
    with pytest.raises(SetupError, match='Did you mean "TOOLKIT_PORT"'):
        load_settings()


def test_an_override_out_of_bounds_names_the_rule():
    with pytest.raises(SetupError, match='"port" must be at most 65535, got 70000'):
        load_settings(port=70000)


def test_keys_are_split_and_never_shown(monkeypatch):
    monkeypatch.setenv("TOOLKIT_API_KEYS", "hunter2,swordfish")
    settings = load_settings()
    assert [key.get_secret_value() for key in settings.api_keys] == ["hunter2", "swordfish"]
    assert "hunter2" not in repr(settings)


def test_a_deployment_becomes_options(tmp_path):
    file = tmp_path / "one.yaml"
    file.write_text("model: toy\nmax_concurrent_requests: 3\noptions: {depth: 2}\nresources: {kv: {pages: 9}}\n")
    options = load_deployment(str(file), numerics="invariant").to_options()
    assert (options.rows, options.numerics, options.model) == (3, "invariant", {"depth": 2})
    assert options.resources == {"kv": {"pages": 9}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: toy\nnumeric: fast", 'Unknown parameter "numeric". Did you mean "numerics"'),
        ("model: toy\ncapture: statik", 'Did you mean "static"'),
        ("model: toy\nnumerics: fats", 'Did you mean "fast"'),
        ("model: toy\nmax_concurrent_requests: 0", "must be at least 1, got 0"),
        ("numerics: fast", 'You must provide "model"'),
        ("- a", "expected a mapping"),
        ("a: [", "not YAML"),
    ],
)
def test_a_bad_deployment_says_why(tmp_path, text, message):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(SetupError) as error:
        load_deployment(str(file))
    assert message in str(error.value)
    assert str(file) in str(error.value)


def test_a_key_without_a_config_has_the_defaults():
    assert load_deployment("no_such_config").model == "no_such_config"
