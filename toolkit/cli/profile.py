"""`toolkit profile`: where the time of a model goes, node by node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli import console

if TYPE_CHECKING:
    from perf.profile import Profile


def profile(
    key: Annotated[str, typer.Argument(help="Registry key, config name or YAML file.")],
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 4,
    requests: Annotated[int, typer.Option(min=1, help="Profiled requests.")] = 16,
    route: Annotated[str | None, typer.Option(help="transcription, speech or chat; else what the key serves.")] = None,
    workload: Annotated[str | None, typer.Option(help="A folder of recordings, a .jsonl file, or a name.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the workload.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for profile.html and profile.json.")] = Path("runs/profile"),
    experimental: Annotated[bool, typer.Option("--experimental", help="Allow keys whose port is not done.")] = False,
) -> None:
    """Run a workload in this process and show the time of each node and batch size: steps, padding, idle, host.

    Example: toolkit profile whisper_tiny_en --concurrency 8
    """
    from reports import profile as report

    found = _run(key, concurrency, requests, route, workload, seed, experimental)
    console.out.print(report.table(found))
    for name, value in report.facts(found):
        console.write(f"{name}: {value}")
    for path in report.write(found, out):
        console.write(str(path))


def _run(
    key: str, concurrency: int, requests: int, route: str | None, workload: str | None, seed: int, experimental: bool
) -> Profile:
    import asyncio

    from models import registry
    from perf import profile as perf
    from perf.bench import route_of
    from perf.workloads import chosen
    from toolkit.deploy import deployments

    (one,) = deployments([key], experimental=experimental)
    wanted = route_of([one.model], route)
    items = chosen(workload, wanted, seed)
    console.say(f"Loading {one.model} ({one.numerics}, {one.profile}, {one.device})")
    loaded = registry.load(one.model, one.to_options())
    return asyncio.run(perf.profile(loaded, items, concurrency=concurrency, requests=requests))


def register(app: typer.Typer) -> None:
    app.command("profile", no_args_is_help=True)(profile)
