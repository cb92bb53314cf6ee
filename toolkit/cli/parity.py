"""`toolkit parity`: compare ports with the recordings of their references."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli import console
from toolkit.cli.console import Exit

NO_TESTS = 5  # pytest's exit code when nothing was collected


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


def register(app: typer.Typer) -> None:
    app.command("parity", no_args_is_help=True)(parity)
