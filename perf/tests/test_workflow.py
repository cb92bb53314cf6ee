"""The CI recipe calls the command line as it is, and each job waits only for jobs that there are."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from toolkit.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def commands(text: str) -> list[list[str]]:
    """Every call of `toolkit` in a recipe, without what the shell does with its output."""
    calls = re.findall(r"^[\s\-]*(?:run: )?toolkit (.*)$", text, re.M)
    return [shlex.split(call.split("|")[0]) for call in calls]


def parse(arguments: list[str]) -> None:
    """Read a command line down to its command; raises if it cannot be."""
    command, context = typer.main.get_command(app), None
    while True:
        context = command.make_context("toolkit", list(arguments), parent=context)
        if not hasattr(command, "get_command"):
            return
        rest = [*getattr(context, "_protected_args", []), *context.args]
        _, found, arguments = command.resolve_command(context, rest)
        assert found is not None
        command = found


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_a_recipe_is_a_workflow_whose_commands_exist(recipe: Path):
    text = recipe.read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert all(set(job.get("needs", ())) <= set(jobs) for job in jobs.values())
    found = commands(text)
    assert found
    for arguments in found:
        parse(arguments)


@pytest.mark.parametrize("wrong", ["bench toy --concurency 4", "report dashbord runs --out site", "benhc toy"])
def test_a_wrong_command_is_seen(wrong: str):
    assert RECIPES
    with pytest.raises(Exception, match=r"No such|unexpected extra"):
        parse(shlex.split(wrong))


def steps(job: str) -> str:
    """The shell of a job's steps, for the toy and few requests, in this environment instead of ones of their own."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "measure.yml").read_text())["jobs"]
    here = (s["run"] for s in jobs[job]["steps"] if "run" in s and "schedule" not in s.get("if", ""))
    text = "\n".join(run for run in here if "pip install" not in run)
    text = re.sub(r"source \S+|\$\{\{.*?\}\}", "", text).replace("bench whisper_tiny_en", "bench toy --route speech")
    return text.replace("--requests 24 --repeats 5", "--requests 3 --repeats 2").replace(
        "dashboard history", "dashboard ."
    )


@pytest.mark.nightly
def test_the_steps_of_the_recipe_run_and_end_in_a_comment_and_a_site(tmp_path: Path):
    """`gh` is replaced by a script that keeps what it is given."""
    for name, code in {"toolkit": f'{sys.executable} -m toolkit.cli.main "$@"', "gh": 'echo "$@" >> gh.txt'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    summary = tmp_path / "summary.md"
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "GITHUB_STEP_SUMMARY": str(summary)}
    for job in ("bench", "comment", "dashboard"):
        script = ["bash", "-e", "-c", steps(job)]
        done = subprocess.run(
            script, cwd=tmp_path, env={**os.environ, **paths}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (job, done.stdout, done.stderr)
    report = (tmp_path / "runs" / "head" / "report.md").read_text()
    comment = (tmp_path / "comment.md").read_text()
    assert report in comment
    assert report in summary.read_text()
    assert "toy, e2e at c=4: inconclusive" in comment or "toy, ttfa at c=4: inconclusive" in comment
    assert "--body-file comment.md" in (tmp_path / "gh.txt").read_text()
    assert (tmp_path / "site" / "index.html").is_file()
