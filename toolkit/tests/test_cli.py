"""The command line: help, nearest names, exit codes, results on standard output."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from serving.api.tests.fake import TEXT, live, make_app
from serving.errors import SetupError
from toolkit.cli.bench import numbers, share
from toolkit.cli.client import read_knobs
from toolkit.cli.console import UsageError
from toolkit.cli.main import run

COMMANDS = ("demo", "models", "pull", "serve", "transcribe", "speak", "bench", "profile", "report", "parity", "oracle")


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """Rich looks at the environment for width and colour."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")


def cli(capsys, *arguments):
    """Exit code, standard output, standard error."""
    code = run(arguments)
    out, err = capsys.readouterr()
    return code, out, " ".join(err.split())


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys; from toolkit.cli.main import run; run(['--help']); assert not {'torch', 'numpy'} & {*sys.modules}"
    )
    spent = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert made.returncode == 0, made.stderr
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.5, spent  # seconds of CPU: a busy machine does not count against it
    for command in COMMANDS:
        assert command in made.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches(capsys, command):
    code, out, _ = cli(capsys, command, "--help")
    assert code == 0
    assert command in out
    assert "xample" in out or command == "oracle"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["modls"], 2, "Did you mean 'models'"),
        (["serve", "toy", "--prot", "1"], 2, "--port"),
        (["serve", "toi"], 2, 'Did you mean "toy"'),
        (["serve", "toy", "--numerics", "invarient"], 3, 'Did you mean "invariant"'),
        (["serve", "toy", "--port", "70000"], 3, "at most 65535"),
        (["serve", "toy", "toy"], 3, "given twice"),
        (["serve", "whisper"], 3, "--experimental"),
        (["serve", "toy", "--device", "tpu"], 3, "device"),
        (["serve", "toy", "--device", "cuda:x"], 3, "device"),
        (["serve", "toy", "--host", "nowhere.invalid"], 3, "Cannot listen on nowhere.invalid:8000"),
        (["speak", "Hi", "-o", "/nowhere/a.wav"], 2, "No folder /nowhere"),
        (["transcribe", "/tmp"], 2, "No file /tmp"),
        (["models", "toi"], 2, 'Did you mean "toy"'),
        (["models", "--task", "speek"], 2, 'Did you mean "speak"'),
        (["transcribe", "nothing.wav"], 2, "No file nothing.wav"),
        (["transcribe", __file__, "--format", "txt"], 2, 'Did you mean "text"'),
        (["speak", "Hi", "-o", "a.wva"], 2, 'Did you mean ".wav"'),
        (["speak", "Hi", "--set", "speed"], 2, "NAME=VALUE"),
        (["transcribe", __file__, "--url", "http://127.0.0.1:9"], 3, "onnect"),
        (["bench", "--url", "http://127.0.0.1:9"], 2, "route"),
        (["bench", "--url", "http://127.0.0.1:9", "--route", "speach"], 2, "speech"),
        (["bench", "toi"], 2, 'Did you mean "toy"'),
        (["bench", "toy", "--slo", "x"], 2, "ttfa=0.4"),
        (["bench", "toy", "--concurrency", "1,x"], 2, "such as 1,8"),
        (["bench", "toy", "--concurrency", "0"], 2, "above 0"),
        (["bench", "gate", "--against", "nothing.json"], 3, "nothing.json"),
        (["report", "nothing.json"], 2, "toolkit bench KEY"),
        (["parity", "toi"], 2, 'Did you mean "toy"'),
        (["oracle", "acept", "x"], 2, "accept"),
        (["oracle", "verify", "whispr"], 2, 'Did you mean "whisper"'),
        (["oracle", "diff", "whisper", "1"], 2, "Name one case"),
        (["oracle", "record", "whisper/nothing"], 2, "has no case"),
        (["oracle", "record", "whisper", "--input", "weights=/nowhere"], 2, "NAME=PATH"),
    ],
)
def test_errors_are_one_line_with_the_nearest_valid_value(capsys, arguments, code, says):
    got, out, err = cli(capsys, *arguments)
    assert (got, out) == (code, "")
    assert says in err
    assert "Traceback" not in err


def test_cases_that_lack_their_files_are_said_not_to_have_run(capsys):
    code, out, _ = cli(capsys, "oracle", "verify", "kokoro")
    assert code == 1
    assert "kokoro/heart: not run, needs --input weights=PATH --input voice=PATH" in out


def test_a_mistyped_key_of_a_deployment_names_the_nearest(capsys, tmp_path):
    """Before what is missing is told, which is missing because it is mistyped."""
    file = tmp_path / "mine.yaml"
    file.write_text("modle: toy\n")
    code, _, err = cli(capsys, "serve", str(file))
    assert code == 3
    assert 'Unknown parameter "modle". Did you mean "model"?' in err


def test_an_unknown_variable_stops_a_server(capsys, monkeypatch):
    monkeypatch.setenv("TOOLKIT_QUEUE_SIZ", "3")
    code, _, err = cli(capsys, "serve", "toy")
    assert (code, 'Did you mean "TOOLKIT_QUEUE_SIZE"' in err) == (3, True)


def test_models_as_text_and_json(capsys):
    code, out, _ = cli(capsys, "models", "--json")
    cards = {card["key"]: card for card in json.loads(out)}
    assert code == 0
    assert cards["toy"]["tasks"] == ["generate", "image", "speak"]
    assert "voice" in cards["toy"]["knobs"]["speak"]["properties"]
    code, out, _ = cli(capsys, "models", "toy")
    assert "cfg_weight = 0.5" in out
    assert "Ge(ge=0.0)" in out


@pytest.fixture(scope="module")
def url():
    app, _ = make_app(api_keys=("key",))
    with live(app) as address:
        yield address


def test_transcribe_asks_a_server(capsys, monkeypatch, url, tone, tmp_path):
    file = tmp_path / "a.wav"
    file.write_bytes(tone)
    monkeypatch.setenv("TOOLKIT_API_KEY", "key")
    asked = ("transcribe", str(file), "--url", url, "--model", "ears")
    assert cli(capsys, *asked)[:2] == (0, TEXT + "\n")
    assert cli(capsys, *asked, "--format", "srt")[1].startswith("1\n00:00:00,000")
    assert json.loads(cli(capsys, *asked, "--format", "verbose_json")[1])["text"] == TEXT
    code, out, err = cli(capsys, *asked, "--set", "beam_size=9")
    assert (code, out) == (1, "")
    assert "nearest valid value is 8" in err


def test_knobs_are_json_where_they_can_be():
    assert read_knobs(["a=1", "b=x", "c=[1, 2]", "d=a=b"]) == {"a": 1, "b": "x", "c": [1, 2], "d": "a=b"}
    assert read_knobs(None) == {}


def test_numbers_and_shares():
    assert numbers("1, 8,32", int, "--concurrency") == (1, 8, 32)
    assert (share("5%"), share("0.1")) == (0.05, 0.1)
    for text in ("", "x", "150%", "-1%"):
        with pytest.raises(UsageError):
            share(text)


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("toolkit.cli.models._table", lambda cards: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(["models"])
    monkeypatch.setattr("toolkit.cli.models._table", lambda cards: (_ for _ in ()).throw(SetupError("no")))
    assert run(["models"]) == 3
