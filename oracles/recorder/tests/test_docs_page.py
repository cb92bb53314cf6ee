"""`docs/parity-for-your-model.md` does what it says: its files are written and its commands run, in order."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/parity-for-your-model.md"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.M | re.S)
RECORDER = """
import sys
from oracles import recorder
action, case, *rest = sys.argv[1:]
family, name = case.split("/")
if action == "record":
    print(case, recorder.record(family, name)[0].version)
else:
    recorder.accept(family, name, rest[0], reason=rest[2])
"""


class Project:
    """An empty folder under git, in which the page is followed."""

    def __init__(self, folder):
        self.folder, self.version = folder, ""
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
            "OMP_NUM_THREADS": "1",
            **{f"GIT_{who}_{what}": "someone" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        self.run(["git", "init", "-q"])

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{python}", f"{sys.version_info.major}.{sys.version_info.minor}"))

    def run(self, command):
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def command(self, line):
        """A line of the page; its output. The recorder's library stands for `toolkit oracle`, which only calls it."""
        words = shlex.split(line.replace("<version>", self.version))
        if words[0] == "pytest":
            return self.run([sys.executable, "-m", "pytest", "-p", "parity.harness.plugin", *words[1:]])
        if words[:2] == ["toolkit", "oracle"]:
            out = self.run([sys.executable, "-c", RECORDER, *words[2:]])
            self.version = out.split()[-1] if words[2] == "record" else self.version
            return out
        return self.run(words)


def follow(page, project):
    """Write the files of a page and run its commands; each line under a command is part of its output."""
    ran = 0
    for language, title, body in BLOCK.findall(page):
        if title:
            project.write(title, body)
        elif language == "console":
            out = ""
            for line in body.splitlines():
                if line.startswith("$ "):
                    out, ran = project.command(line[2:]), ran + 1
                else:
                    assert line.replace("<version>", project.version) in out, f"{line!r} is not in:\n{out}"
    return ran


def test_the_page_can_be_followed(tmp_path):
    assert follow(PAGE.read_text(), Project(tmp_path)) >= 8
    assert (tmp_path / "oracles/refnet/cases/tiny/manifest.json").exists()
    assert (tmp_path / "parity.json").exists()


def test_a_page_that_promises_something_else_fails(tmp_path):
    page = '```text title="a.txt"\nhello\n```\n\n```console\n$ cat a.txt\n{}\n```\n'
    assert follow(page.format("hello"), Project(tmp_path)) == 1
    with pytest.raises(AssertionError, match="goodbye"):
        follow(page.format("goodbye"), Project(tmp_path))


def test_the_page_names_every_metric_and_state():
    from parity.harness import METRICS
    from parity.harness.schema import STATES

    text = PAGE.read_text()
    assert [name for name in METRICS if name not in text and name not in ("cer", "join_excess")] == []
    assert [state for state in STATES if state not in text] == []
