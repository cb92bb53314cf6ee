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
    from perf.schema import Run

N = TypeVar("N", int, float)
OUT = Path("runs/latest")
DEFAULT_KEY = "whisper_tiny_en"
DEFAULT_URL = "http://127.0.0.1:8000"
ROUTES = ("transcription", "speech", "chat", "image", "video", "generate", "live", "realtime")


class RunByDefault(TyperGroup):
    """`toolkit bench KEY` is `toolkit bench run KEY`, and so for reports."""

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
report = typer.Typer(
    cls=RunByDefault,
    help="Write reports.\n\nExample: toolkit report runs/latest/run.json",
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
    repeats: Annotated[int, typer.Option(min=1, help="Times each point is measured, in turn.")] = 1,
    find: Annotated[str | None, typer.Option(help="knee: sweep to it. rate: the highest that holds --slo.")] = None,
    slo: Annotated[list[str] | None, typer.Option(help="A limit, such as ttfa=0.4. May be repeated.")] = None,
    peers: Annotated[str | None, typer.Option(help="Other systems in the same run, in turn: names, commas.")] = None,
    url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server that already runs.")] = None,
    route: Annotated[
        str | None,
        typer.Option(
            help="transcription, speech, chat, image, video, generate, live or realtime; else what the keys serve."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="With --url: the model's name there.")] = None,
    workload: Annotated[
        str | None,
        typer.Option(help="A folder of recordings, a .jsonl file, or a name such as prompts:words=400,max_tokens=128."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(min=0.1, help="Minutes for the whole run, shared by its points.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare answers of the run with solo answers.")] = False,
    cancel_every: Annotated[
        int, typer.Option(min=0, help="Every n-th client leaves before its answer is complete.")
    ] = 0,
    cancel_after: Annotated[float, typer.Option(min=0.0, help="Seconds after which such a client leaves.")] = 0.5,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Answers of their full set length.")] = False,
    steady: Annotated[bool, typer.Option("--steady", help="Warm up until latency holds still, within limits.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run.json in --out.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and workload.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for run.json and the reports.")] = OUT,
    experimental: Annotated[bool, typer.Option("--experimental", help="Allow keys whose port is not done.")] = False,
) -> None:
    """Load servers and write run.json and the reports. Keys and peers take turns in the same run.

    Without a key: the server on the default port if one is there, else the embedded default model.

    Examples:

      toolkit bench whisper_tiny_en --concurrency 1,8,32 --verify

      toolkit bench --url http://127.0.0.1:8000 --model kokoro --rate 0.5,1,2

      toolkit bench whisper_tiny_en --find rate --slo ttft=0.5

      toolkit bench whisper_tiny_en kokoro --concurrency 1,4,8,32 --peers faster-whisper,kokoro-onnx --budget 14
    """
    _run(**locals())


def _run(
    *,
    keys: list[str] | None,
    url: str | None,
    concurrency: str,
    rate: str | None,
    budget: float | None,
    find: str | None,
    slo: list[str] | None,
    peers: str | None,
    route: str | None,
    out: Path,
    **others: Any,
) -> None:
    """The options as the bench takes them, the run, and its reports."""
    from perf.bench import run_bench

    if not keys and not url:
        keys, url = _nobody_said()
    done = run_bench(
        keys=keys or [],
        url=url,
        route=console.choice(route, ROUTES, "--route"),
        concurrency=numbers(concurrency, int, "--concurrency"),
        rate=numbers(rate, float, "--rate") if rate else (),
        budget=60 * budget if budget else None,
        find=console.choice(find, ("knee", "rate"), "--find"),  # type: ignore[arg-type]
        slos=_limits(slo or []),
        peers=console.split([peers]) if peers else (),
        out=out,
        say=console.say,
        **others,
    )
    _write(done, out)


def _write(done: Run, out: Path, *, again: bool = False) -> None:
    """Write the reports and name them; a run that Ctrl-C has just ended ends as that does."""
    import reports

    for path in reports.write_all(done, out):
        console.write(str(path))
    if done.partial and not again:
        raise KeyboardInterrupt


def _nobody_said() -> tuple[list[str], str | None]:
    """What to bench when neither a key nor a server is named."""
    import httpx

    try:
        httpx.get(f"{DEFAULT_URL}/health/ready", timeout=1.0).raise_for_status()
    except httpx.HTTPError:
        console.say(f"No server at {DEFAULT_URL}: starting {DEFAULT_KEY}.")
        return [DEFAULT_KEY], None
    return [], DEFAULT_URL


def _limits(given: list[str]) -> dict[str, float]:
    """`["ttfa=0.4"]` as {"ttfa": 0.4}; the bench knows which names there are."""
    limits = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            limits[name] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise console.UsageError(f'--slo wants a limit such as ttfa=0.4; got "{text}".')
    return limits


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


@report.command("run")
def report_run(
    run: Annotated[Path, typer.Argument(help="A run.json.")] = OUT / "run.json",
    out: Annotated[Path | None, typer.Option(help="Folder; without it, the run's.")] = None,
) -> None:
    """Write the reports of a run again: they are pure functions of run.json.

    Example: toolkit report runs/latest/run.json --out public
    """
    from perf.schema import read_run

    if not run.is_file():
        raise console.UsageError(f"No run at {run}; make one with: toolkit bench KEY")
    _write(read_run(run), out or run.parent, again=True)


@report.command("dashboard", no_args_is_help=True)
def dashboard(
    folders: Annotated[list[Path], typer.Argument(help="Searched for run.json and parity.json.", metavar="DIR...")],
    out: Annotated[Path, typer.Option(help="Folder of the site.")] = Path("site"),
) -> None:
    """Write a static site of many runs: parity matrix, newest figures, steps, sweeps, history, each run's report.

    Example: toolkit report dashboard runs --out site
    """
    from reports.dashboard import write_dashboard

    console.write(str(write_dashboard(folders, out)))


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
    app.add_typer(report, name="report")
