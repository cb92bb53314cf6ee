"""The CI recipe calls the command line as it is, and each job waits only for jobs that there are."""

from __future__ import annotations

import re
import shlex
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
