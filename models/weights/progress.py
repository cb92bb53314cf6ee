"""One progress bar for everything that takes long: downloads and conversions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def byte_bar(title: str, total: int | None = None) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error; call what it yields with (bytes done, bytes in all or None)."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total)

        def update(done: int, total: int | None = None) -> None:
            progress.update(task, completed=done, total=total)

        yield update
