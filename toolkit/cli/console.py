"""How the command line talks: results on standard output, everything else on standard error, exit codes with meaning.

0 done; 1 the command ran and its answer is no (a test failed, a gate did not hold); 2 the command was written
wrongly; 3 something outside is missing or broken (weights, a server, a port); 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from enum import IntEnum

from rich.console import Console
from rich.markup import escape

from serving.errors import nearest

out = Console()
err = Console(stderr=True)


class Exit(IntEnum):
    OK, NO, USAGE, OUTSIDE, STOPPED = 0, 1, 2, 3, 130


class UsageError(Exception):
    """The command was written wrongly."""


class OutsideError(Exception):
    """Something outside the command is missing or broken."""


def say(message: str) -> None:
    """Progress for people, on standard error."""
    err.print(escape(message), highlight=False)


def write(text: str) -> None:
    """A result, on standard output, as it is."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def fail(message: str) -> None:
    err.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)


def split(values: Iterable[str]) -> list[str]:
    """Values given apart or with commas between them."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def choice(value: str | None, valid: Iterable[str], option: str) -> str | None:
    """The value, if it is one of the valid ones or not given; else a usage error that names the nearest."""
    options = list(valid)
    if value is not None and value not in options:
        raise UsageError(f'{option} has no value "{value}".{nearest(value, options)}')
    return value
