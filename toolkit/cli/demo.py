"""`toolkit demo`: the whole house once, with real weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli.console import Exit


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("runs/demo"),
    requests: Annotated[int, typer.Option(min=1, help="Requests of the short bench.")] = 8,
) -> None:
    """Serve a real Whisper, transcribe a recording over HTTP, print text and word error rate, bench, report.

    Example:

      toolkit demo --out runs/demo
    """
    from toolkit.demo import run

    if not run(out, requests):
        raise typer.Exit(Exit.NO)


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)
