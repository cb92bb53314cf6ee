"""Every example runs against a server of the command line, and prints what its README says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import soundfile

from perf.launch import running, toolkit

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parent
CLIP = ROOT / "oracles" / "speech" / "clips" / "00_af_heart.flac"
FOLDERS = sorted(path.name for path in HERE.iterdir() if re.match(r"\d\d_", path.name))


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with running(toolkit("whisper_tiny_en", "toy"), tmp_path_factory.mktemp("logs")) as server:
        yield server.target.url


def run(folder, *arguments, cwd, python=sys.executable):
    """What the folder's script prints; it must end well."""
    (script,) = [path for path in (HERE / folder).iterdir() if path.suffix in {".py", ".sh"}]
    program = python if script.suffix == ".py" else "bash"
    done = subprocess.run(
        [program, str(script), *map(str, arguments)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_transcribe_openai(url, tmp_path):
    whole, *segments, streamed = run("01_transcribe_openai", CLIP, url, cwd=tmp_path).strip().splitlines()
    assert "weather report for the northern coast" in whole.lower()
    assert re.match(r" *0\.\d\d +\d+\.\d\d Good morning", segments[0])
    assert streamed == whole


def test_speech_stream_openai(url, tmp_path):
    out = run("02_speech_stream_openai", "hello.wav", "Hello. It is late.", "toy", url, cwd=tmp_path)
    samples, rate = soundfile.read(tmp_path / "hello.wav")
    assert re.match(r"first sound after [\d.]+ s\nhello.wav: \d+ bytes after [\d.]+ s\n", out)
    assert (len(samples) > 100, rate) == (True, 8000)


def test_curl(url, tmp_path):
    out = run("03_curl", CLIP, url, "toy", cwd=tmp_path)
    assert '"id":"toy"' in out
    assert "00:00:00,000 --> " in out
    assert 'route="/v1/audio/speech",status="200"' in out
    assert soundfile.info(tmp_path / "speech.mp3").frames > 0


def test_client_async(url, tmp_path):
    lines = run("04_client_async", "toy", url, cwd=tmp_path).strip().splitlines()
    assert len([line for line in lines if line.endswith("bytes of WAV")]) == 4
    assert re.match(r"stream: \d+ bytes in \d+ parts", lines[4])
    assert lines[5].startswith("refused:")
    assert "mp3" in lines[5]


def test_generate_websocket(url, tmp_path):
    out = run("05_generate_websocket", url, cwd=tmp_path)
    assert out.startswith("done: 50 tokens for 200 samples")


def environment_of(folder, path):
    """The interpreter of a new environment with what the folder requires."""
    venv.create(path, with_pip=True)
    python = path / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "-r", HERE / folder / "requirements.txt"], check=True)
    return str(python)


HEARD = r"spoken: \d+\.\d\d s\nheard: .*\n"


@pytest.mark.nightly
def test_livekit_agents(url, tmp_path):
    python = environment_of("06_livekit_agents", tmp_path / "env")
    out = run("06_livekit_agents", "It is late.", "toy", "whisper_tiny_en", url, cwd=tmp_path, python=python)
    assert re.fullmatch(HEARD, out)


@pytest.mark.nightly
def test_pipecat(url, tmp_path):
    python = environment_of("07_pipecat", tmp_path / "env")
    out = run("07_pipecat", "It is late.", "toy", "whisper_tiny_en", url, cwd=tmp_path, python=python)
    assert re.fullmatch(HEARD, out)


def test_every_example_is_explained_listed_and_run():
    tests = Path(__file__).read_text(encoding="utf-8")
    listed = (HERE / "README.md").read_text(encoding="utf-8")
    assert len(FOLDERS) == 7
    for folder in FOLDERS:
        assert (HERE / folder / "README.md").is_file(), folder
        assert f"({folder})" in listed
        assert f'run("{folder}"' in tests
