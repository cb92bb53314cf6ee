"""`toolkit oracle`: the recordings of the references: record, verify, diff, accept, status."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from toolkit.cli import console
from toolkit.cli.console import Exit

oracle = typer.Typer(
    help="Recordings of the references: record, verify, diff, accept, status.\n\nExample: toolkit oracle status",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
Case = Annotated[str, typer.Argument(help="A family, or FAMILY/CASE.", metavar="CASE")]
Inputs = Annotated[list[str] | None, typer.Option("--input", help="A file that a case needs: NAME=PATH.")]


@oracle.command("record", no_args_is_help=True)
def record(case: Case, inputs: Inputs = None) -> None:
    """Run the reference in its own environment and keep a new recording; `accept` makes it the one in use.

    Example: toolkit oracle record whisper/tiny_greedy --input weights=model.bin
    """
    import oracles.recorder as recorder

    given = read_inputs(inputs)
    made = recorder.record(*split(case), inputs=given)
    for one in made:
        console.write(f"{one.family}/{one.case} {one.version}")
    say_left_out(*split(case), given)
    if not made:
        raise typer.Exit(Exit.NO)


@oracle.command("verify", no_args_is_help=True)
def verify(case: Case, inputs: Inputs = None) -> None:
    """Record accepted cases again and compare bytes; exit code 1 when something moved, or nothing could be compared.

    Example: toolkit oracle verify whisper
    """
    import oracles.recorder as recorder

    given = read_inputs(inputs)
    results = recorder.verify(*split(case), inputs=given)
    for one in results:
        elsewhere = f" (another platform: {', '.join(one.platform)})" if one.platform else ""
        state = "the same" if one else f"moved: {', '.join(one.moved)}"
        console.write(f"{one.family}/{one.case}: {state}{elsewhere}")
    say_left_out(*split(case), given)
    if not results or not all(results):
        raise typer.Exit(Exit.NO)


@oracle.command("diff", no_args_is_help=True)
def diff(
    case: Annotated[str, typer.Argument(help="FAMILY/CASE.", metavar="CASE")],
    new: Annotated[str, typer.Argument(help="A recorded version.", metavar="VERSION")],
    old: Annotated[str | None, typer.Option(help="Compare with this version instead of the accepted one.")] = None,
) -> None:
    """Show what moved from the accepted version to a new one, metric by metric.

    Example: toolkit oracle diff whisper/tiny_greedy 3f2a
    """
    import oracles.recorder as recorder

    changes = recorder.diff(*whole(case), new, old=old)
    for change in changes:
        distance = ", ".join(f"{name} {value:.3g}" for name, value in change.distance.items())
        console.write(f"{change.kind} {change.name} {distance}".rstrip())
    if not changes:
        console.write("nothing moved")


@oracle.command("accept", no_args_is_help=True)
def accept(
    case: Annotated[str, typer.Argument(help="FAMILY/CASE.", metavar="CASE")],
    version: Annotated[str, typer.Argument(help="A recorded version.")],
    reason: Annotated[str, typer.Option(help="Why this is right.")],
) -> None:
    """Make a recorded version the one that tests compare with.

    Example: toolkit oracle accept whisper/tiny_greedy 3f2a --reason "openai-whisper 20250625"
    """
    import oracles.recorder as recorder

    made = recorder.accept(*whole(case), version, reason=reason)
    console.write(f"{case} is {made.version}")


@oracle.command("status")
def status(
    family: Annotated[str | None, typer.Argument(help="One family; without it, all.")] = None,
) -> None:
    """One line a case: accepted version, age, size, whether it still holds here, what awaits acceptance.

    Example: toolkit oracle status whisper
    """
    from rich.table import Table

    import oracles.recorder as recorder

    table = Table("Case", "Version", "Age", "Size", "State", "Waiting", box=None, pad_edge=False)
    for one in recorder.status(known_family(family) if family else None):
        state = "none" if one.version is None else "stale" if one.stale else "portable" if one.elsewhere else "exact"
        age = "" if one.age_days is None else f"{one.age_days} d"
        waiting = ", ".join(one.recordings) or (f"needs {', '.join(one.needs)}" if one.needs else "")
        table.add_row(f"{one.family}/{one.case}", one.version or "-", age, f"{one.size / 1024:.0f} KiB", state, waiting)
    console.out.print(table)


def say_left_out(family: str, case: str | None, given: Mapping[str, Path]) -> None:
    """Name the cases that were not run for want of files."""
    from oracles.recorder import lacking

    for name, files in lacking(root() / family, given).items():
        if files and case is None:
            console.write(f"{family}/{name}: not run, needs {' '.join(f'--input {file}=PATH' for file in files)}")


def split(case: str) -> tuple[str, str | None]:
    """`"family/case"` as its parts, both of which exist; `"family"` alone stands for all its cases."""
    from oracles.recorder import cases_of
    from serving.errors import nearest

    family, _, name = case.partition("/")
    known_family(family)
    cases = cases_of(root() / family)
    if name and name not in cases:
        raise console.UsageError(f'{family} has no case "{name}".{nearest(name, cases)}')
    return family, name or None


def whole(case: str) -> tuple[str, str]:
    family, name = split(case)
    if name is None:
        raise console.UsageError(f"Name one case: {family}/CASE.")
    return family, name


def known_family(family: str) -> str:
    """The family, if it has a recorder."""
    from serving.errors import nearest

    families = [path.parent.name for path in root().glob("*/record.py")]
    if family not in families:
        raise console.UsageError(f'No family "{family}" with a recorder.{nearest(family, families)}')
    return family


def root() -> Path:
    import oracles

    return Path(oracles.__file__ or "").parent


def read_inputs(pairs: list[str] | None) -> dict[str, Any]:
    """`["weights=a.bin"]` as {"weights": Path("a.bin")}; the files exist."""
    inputs: dict[str, Any] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        if not equals or not Path(value).exists():
            raise console.UsageError(f'--input wants NAME=PATH of a file, got "{pair}".')
        inputs[name] = Path(value)
    return inputs


def register(app: typer.Typer) -> None:
    app.add_typer(oracle, name="oracle")
