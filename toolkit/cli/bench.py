"""`toolkit bench`, `toolkit bench compare`, `toolkit bench gate`, `toolkit report`: measure, judge, write it down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from toolkit.cli import console
from toolkit.cli.console import Exit

if TYPE_CHECKING:
    from perf.gate import Comparison

N = TypeVar("N", int, float)
OUT = Path("runs/latest")
DEFAULT_KEY = "whisper_tiny_en"
ROUTES = {"transcribe": "transcription", "speak": "speech", "chat": "chat"}  # task -> the bench's name for its route


class RunByDefault(TyperGroup):
    """`toolkit bench KEY` is `toolkit bench run KEY`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in {"-h", "--help"}):
            args = ["run", *args]
        return super().parse_args(ctx, args)


bench = typer.Typer(
    cls=RunByDefault,
    help="Load servers, write run.json and the reports.\n\nExample: toolkit bench whisper_tiny_en --concurrency 1,8",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
Allowed = Annotated[str, typer.Option(help="Loss that is still fine: 5% or 0.05.")]


@bench.command("run")
def run(
    keys: Annotated[list[str] | None, typer.Argument(help="Registry keys; a server is started for each.")] = None,
    concurrency: Annotated[str, typer.Option(help="Requests in flight, one point each: 1,8,32.")] = "1,8",
    rate: Annotated[str | None, typer.Option(help="Requests a second instead (Poisson), one point each.")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Measured requests a point.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Times each point is measured.")] = 1,
    url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server that already runs.")] = None,
    route: Annotated[str | None, typer.Option(help="With --url: transcription, speech or chat.")] = None,
    model: Annotated[str | None, typer.Option(help="With --url: the model's name there.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare answers of the run with solo answers.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and workload.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for run.json and the reports.")] = OUT,
    experimental: Annotated[bool, typer.Option("--experimental", help="Allow keys whose port is not done.")] = False,
) -> None:
    """Load servers and write run.json and the reports. Keys of one route take turns in the same run.

    Examples:

      toolkit bench whisper_tiny_en --concurrency 1,8,32 --verify

      toolkit bench --url http://127.0.0.1:8000 --route speech --model kokoro --rate 0.5,1,2
    """
    import reports
    from perf.bench import Settings, run_bench
    from perf.schema import Load

    levels = numbers(concurrency, int, "--concurrency")
    loads = [Load("poisson", level) for level in numbers(rate, float, "--rate")] if rate else []
    settings = Settings(requests=requests, repeats=repeats, seed=seed, verify=8 if verify else 0)
    groups = _targets(keys or [], url, route, model, experimental)
    for name, targets in groups.items():
        folder = out / name if len(groups) > 1 else out
        done = run_bench(targets, name, None, levels, loads=loads, settings=settings, out=folder, say=console.say)
        for path in reports.write_all(done, folder):
            console.write(str(path))
        if done.partial:
            raise KeyboardInterrupt


def _targets(
    keys: list[str], url: str | None, route: str | None, model: str | None, experimental: bool
) -> dict[str, list[Any]]:
    """What to load, by route."""
    from perf.client.routes import Target

    if url:
        if keys or not route or not model:
            raise console.UsageError("--url wants --route and --model, and no keys.")
        return {route: [Target(url.rstrip("/"), model, model)]}
    from models.registry import card
    from perf.launch import toolkit
    from serving.settings import load_deployment

    options = ["--experimental"] if experimental else []
    groups: dict[str, list[Any]] = {}
    for key in keys or [DEFAULT_KEY]:
        found = card(load_deployment(key).model)
        name = next((ROUTES[task] for task in found.tasks if task in ROUTES), None)
        if name is None:
            raise console.UsageError(f"There is no bench for {key}: it serves {', '.join(sorted(found.tasks))}.")
        groups.setdefault(name, []).append(toolkit(key, *options))
    return groups


@bench.command("compare", no_args_is_help=True)
def compare(
    before: Annotated[Path, typer.Argument(help="A run.json.", metavar="A")],
    after: Annotated[Path, typer.Argument(help="The run.json to judge.", metavar="B")],
    max_regression: Allowed = "5%",
) -> None:
    """Compare two runs, load by load: ratio, interval, verdict.

    Example: toolkit bench compare runs/main/run.json runs/latest/run.json
    """
    for line in _compared(before, after, max_regression):
        console.write(str(line))


@bench.command("gate", no_args_is_help=True)
def gate(
    against: Annotated[Path, typer.Option(help="The baseline's run.json.")],
    run: Annotated[Path, typer.Option(help="The run.json to judge.")] = OUT / "run.json",
    max_regression: Allowed = "5%",
) -> None:
    """Fail (exit code 1) when a run is slower than a baseline; "inconclusive" is said and passes.

    Example: toolkit bench gate --against baseline.json --max-regression 5%
    """
    from perf.gate import overall

    found = _compared(against, run, max_regression)
    for line in found:
        console.write(str(line))
    verdict = overall(found)
    console.write(verdict)
    if verdict == "fail":
        raise typer.Exit(Exit.NO)


def _compared(before: Path, after: Path, allowed: str) -> list[Comparison]:
    from perf import gate as judge
    from perf.schema import read_run

    return judge.compare(read_run(before), read_run(after), allowed=share(allowed))


def report(
    run: Annotated[Path, typer.Argument(help="A run.json.")] = OUT / "run.json",
    out: Annotated[Path | None, typer.Option(help="Folder; without it, the run's.")] = None,
) -> None:
    """Write the reports of a run again: they are pure functions of run.json.

    Example: toolkit report runs/latest/run.json --out public
    """
    import reports
    from perf.schema import read_run

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


def share(text: str) -> float:
    """`"5%"` or `"0.05"` as 0.05."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise console.UsageError(f'--max-regression wants a share such as 5% or 0.05; got "{text}".') from None
    if not 0 <= value < 1:
        raise console.UsageError(f'--max-regression wants a share from 0 to 1; got "{text}".')
    return value


def register(app: typer.Typer) -> None:
    app.add_typer(bench, name="bench")
    app.command("report")(report)
