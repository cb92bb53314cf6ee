"""`toolkit parity` and `toolkit oracle`: compare ports with their references, and keep the recordings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli import console
from toolkit.cli.console import Exit

NO_TESTS = 5  # pytest's exit code when nothing was collected

oracle = typer.Typer(
    help="Recordings of the references: record, verify, diff, accept, status.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
Cases = Annotated[list[str], typer.Argument(help="Families, or family/case.", metavar="CASE...")]


def parity(
    key: Annotated[str, typer.Argument(help="Registry key or family.")],
    bisect: Annotated[bool, typer.Option("--bisect", help="Find the first layer that differs.")] = False,
    arguments: Annotated[list[str] | None, typer.Argument(help="For pytest, after --.", metavar="[-- ...]")] = None,
) -> None:
    """Compare a port with its reference's recordings, tap by tap. The same as `pytest parity/ -k KEY`.

    Examples:

      toolkit parity whisper_tiny_en

      toolkit parity whisper --bisect

      toolkit parity kokoro -- -x --tb=short
    """
    import parity as package
    from models.registry import cards
    from serving.errors import nearest

    known = set(cards()) | {card.family for card in cards().values()}
    if key not in known:
        raise console.UsageError(f'No key or family "{key}".{nearest(key, known)}')
    folder = Path(package.__file__ or "").parent
    command = [sys.executable, "-m", "pytest", str(folder), "-k", key, *(["--parity-bisect"] if bisect else [])]
    code = subprocess.run([*command, *(arguments or [])], check=False).returncode
    if code == NO_TESTS:
        raise console.OutsideError(f"There is no parity test for {key}.")
    if code:
        raise typer.Exit(Exit.NO)


@oracle.command("record", no_args_is_help=True)
def record(cases: Cases) -> None:
    """Run the reference in its own environment and write a new recording; `accept` makes it the one in use.

    Example: toolkit oracle record whisper/greedy
    """
    _run("record", cases)


@oracle.command("verify")
def verify(cases: Annotated[list[str] | None, typer.Argument(help="Families, or family/case; all.")] = None) -> None:
    """Check that recordings are what their manifests say, and name the stale ones."""
    _run("verify", cases or [])


@oracle.command("diff", no_args_is_help=True)
def diff(cases: Cases) -> None:
    """Show what differs between a new recording and the one in use."""
    _run("diff", cases)


@oracle.command("accept", no_args_is_help=True)
def accept(cases: Cases) -> None:
    """Make a new recording the one in use."""
    _run("accept", cases)


@oracle.command("status")
def status(cases: Annotated[list[str] | None, typer.Argument(help="Families, or family/case; all.")] = None) -> None:
    """One line a case: current, stale, portable, new."""
    _run("status", cases or [])


def _run(action: str, cases: list[str]) -> None:
    """Call the recorder; a result that is false means no."""
    import oracles.recorder as recorder

    result = getattr(recorder, action)(cases)
    console.write(str(result))
    if not result:
        raise typer.Exit(Exit.NO)


def register(app: typer.Typer) -> None:
    app.command("parity", no_args_is_help=True)(parity)
    app.add_typer(oracle, name="oracle")
