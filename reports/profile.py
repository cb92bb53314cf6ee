"""A profile as a table for the terminal and as a page: a flame of run, node and size, and the steps in time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from perf.profile import Part, Profile, parts
from reports.html import environment
from reports.numbers import quantity, significant

MOST_STEPS = 400  # drawn in the timeline
HEAD = ("Node", "Size", "Steps", "Time", "Wall", "Step", "Rows", "Pad", "Idle", "Host")


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of the flame: shares of the page's width, from the left; `colour` is one of eight, 0 is none."""

    name: str
    detail: str
    left: float
    width: float
    level: int
    colour: int


def lines(found: Profile) -> list[list[str]]:
    """The table's cells, a line a node and a line a size; the last one is what no step used."""
    rows = [_line(part, found) for part in parts(found)]
    idle = found.wall - sum(step.seconds for step in found.steps)
    return [*rows, ["no step", "", "", quantity(idle, "s"), _share(idle, found.wall), *[""] * 5]]


def _line(part: Part, found: Profile) -> list[str]:
    return [
        part.node if part.size is None else "",
        "all" if part.size is None else str(part.size),
        str(part.steps),
        quantity(part.seconds, "s"),
        _share(part.seconds, found.wall),
        quantity(part.seconds / part.steps, "s"),
        significant(part.rows),
        _share(part.waste, 1),
        quantity(part.idle, "s"),
        "" if part.host is None else quantity(part.host, "s"),
    ]


def _share(value: float, whole: float) -> str:
    return f"{100 * value / whole:.1f} %" if whole else "n/a"


def facts(found: Profile) -> list[tuple[str, str]]:
    """Host against device, for the whole run."""
    device = sum(step.seconds for step in found.steps)
    pools = ", ".join(f"{call} {quantity(seconds, 's')}" for call, seconds in sorted(found.pools.items()))
    return [
        ("Wall time", quantity(found.wall, "s")),
        ("Steps on the device", f"{quantity(device, 's')} ({_share(device, found.wall)} of wall)"),
        ("Engine thread, CPU", f"{quantity(found.engine_cpu, 's')} ({_share(found.engine_cpu, found.wall)} of wall)"),
        ("Process, CPU", f"{quantity(found.process_cpu, 's')} ({significant(found.process_cpu / found.wall)} cores)"),
        ("Host pools, the port's calls", pools or "none"),
    ]


def table(found: Profile) -> Table:
    """For the terminal."""
    title = f"{found.key}, {found.requests} requests, {found.concurrency} at a time, {found.options['device']}"
    shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=0)
    for i, name in enumerate(HEAD):
        shown.add_column(name, justify="right" if i else "left", no_wrap=True)
    for cells in lines(found):
        shown.add_row(*cells)
    return shown


def flame(found: Profile) -> list[Block]:
    """Run over nodes over sizes: as wide as their time; what is left of the run is idle."""
    whole = max(found.wall, sum(step.seconds for step in found.steps)) or 1.0
    blocks = [Block(found.key, quantity(found.wall, "s"), 0.0, 100.0, 0, 0)]
    left, inner, colour = 0.0, 0.0, 0
    for part in parts(found):
        width = 100 * part.seconds / whole
        detail = f"{quantity(part.seconds, 's')}, {part.steps} steps"
        if part.size is None:
            inner, colour = left, colour % 8 + 1
            blocks.append(Block(part.node, detail, left, width, 1, colour))
            left += width
        else:
            detail += f", {_share(part.waste, 1)} padding"
            blocks.append(Block(f"size {part.size}", detail, inner, width, 2, colour))
            inner += width
    return [*blocks, Block("idle", _share(100 - left, 100), left, max(0.0, 100 - left), 1, 0)]


def timeline(found: Profile, colours: dict[str, int]) -> Iterator[Block]:
    """The middle of the run, where it is steady: at most `MOST_STEPS` steps in the order in which they ran."""
    steps = sorted(found.steps, key=lambda t: t.began)
    at = max(0, (len(steps) - MOST_STEPS) // 2)
    shown = steps[at : at + MOST_STEPS]
    if not shown:
        return
    start, span = shown[0].began, shown[-1].began + shown[-1].seconds - shown[0].began or 1.0
    for t in shown:
        detail = f"{quantity(t.seconds, 's')}, {t.rows} of {t.size} rows"
        left, width = 100 * (t.began - start) / span, 100 * t.seconds / span
        yield Block(t.node, detail, left, width, list(colours).index(t.node), colours[t.node])


def render(found: Profile) -> str:
    """The page: one file, no scripts, no outside resources."""
    blocks = flame(found)
    colours = {block.name: block.colour for block in blocks if block.level == 1 and block.colour}
    return environment().get_template("profile.html.j2").render(
        profile=found,
        facts=facts(found),
        head=HEAD,
        lines=lines(found),
        flame=blocks,
        timeline=list(timeline(found, colours)),
        colours=colours,
        total=len(found.steps),
    )  # fmt: skip


def write(found: Profile, out: Path) -> Sequence[Path]:
    """Write profile.json and profile.html. Returns the paths."""
    page = out / "profile.html"
    data = found.save(out / "profile.json")
    page.write_text(render(found), encoding="utf-8")
    return [page, data]
