"""`toolkit bench` and `toolkit report`: measure a server, and write the reports of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeVar

import typer

from toolkit.cli import console

N = TypeVar("N", int, float)
OUT = Path("runs/latest")


def bench(
    keys: Annotated[list[str] | None, typer.Argument(help="Registry keys; a server is started for them.")] = None,
    concurrency: Annotated[str, typer.Option(help="Requests in flight, one point each: 1,8,32.")] = "1,8",
    rate: Annotated[str | None, typer.Option(help="Requests a second instead (Poisson), one point each.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Measured requests a point.")] = None,
    url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server that already runs.")] = None,
    route: Annotated[str | None, typer.Option(help="transcribe, speak, chat, ...; without it, the model's.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name at --url.")] = None,
    peers: Annotated[str | None, typer.Option(help="Compared in the same run, such as openai-whisper.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare outputs of the run with solo runs.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and workload.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for run.json and the reports.")] = OUT,
    experimental: Annotated[bool, typer.Option("--experimental", help="Allow keys whose port is not done.")] = False,
) -> None:
    """Load a server, write run.json and the reports.

    Examples:

      toolkit bench whisper_tiny_en --concurrency 1,8,32 --verify

      toolkit bench --url http://127.0.0.1:8000 --route speak --model kokoro --rate 0.5,1,2
    """
    from perf.bench import run_bench

    import reports

    if not keys and not url:
        raise console.UsageError("Name a key to serve, or a server with --url.")
    run = run_bench(
        keys=tuple(keys or ()),
        url=url,
        route=route,
        model=model,
        concurrency=numbers(concurrency, int, "--concurrency"),
        rate=numbers(rate, float, "--rate") if rate else (),
        requests=requests,
        peers=tuple(console.split([peers])) if peers else (),
        verify=verify,
        seed=seed,
        out=out,
        experimental=experimental,
    )
    for path in reports.write_all(run, out):
        console.write(str(path))


def report(
    run: Annotated[Path, typer.Argument(help="A run.json.")] = OUT / "run.json",
    out: Annotated[Path | None, typer.Option(help="Folder; without it, the run's.")] = None,
) -> None:
    """Write the reports of a run again: they are pure functions of run.json.

    Example:

      toolkit report runs/latest/run.json --out public
    """
    from perf.schema import read_run

    import reports

    if not run.is_file():
        raise console.UsageError(f"No run at {run}; make one with: toolkit bench KEY")
    for path in reports.write_all(read_run(run), out or run.parent):
        console.write(str(path))


def numbers(text: str, kind: type[N], option: str) -> tuple[N, ...]:
    """`"1,8"` as (1, 8); all positive."""
    try:
        values = tuple(kind(part) for part in console.split([text]))
    except ValueError:
        raise console.UsageError(f'{option} wants numbers such as 1,8; got "{text}".') from None
    if not values or min(values) <= 0:
        raise console.UsageError(f'{option} wants numbers above 0, got "{text}".')
    return values


def register(app: typer.Typer) -> None:
    app.command("bench", no_args_is_help=True)(bench)
    app.command("report")(report)
