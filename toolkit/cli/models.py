"""`toolkit models` and `toolkit pull`: what there is, and getting it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli import console

if TYPE_CHECKING:
    from serving.core.contract import Card


def models(
    key: Annotated[str | None, typer.Argument(help="Show one key in full.")] = None,
    task: Annotated[str | None, typer.Option(help="Only keys with this task, such as transcribe.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models and whether each port is done; of one, its licence, weights and knobs too.

    Examples:

      toolkit models

      toolkit models whisper_tiny_en

      toolkit models --task transcribe --json
    """
    from models.registry import card, cards
    from serving.errors import nearest

    tasks = {name for one in cards().values() for name in one.tasks}
    if task and task not in tasks:
        raise console.UsageError(f'No task "{task}".{nearest(task, tasks)}')
    chosen = [card(key)] if key else [one for one in cards().values() if not task or task in one.tasks]
    if as_json:
        console.write(json.dumps([_as_dict(one) for one in chosen], indent=2))
    elif key:
        _facts(chosen[0])
        _knobs(chosen[0])
    else:
        _table(chosen)


def pull(
    keys: Annotated[list[str], typer.Argument(help="Registry keys.", metavar="KEY...")],
) -> None:
    """Fetch everything a key needs and check it: weights, voices, taggers. Serving then needs no network.

    Example:

      toolkit pull whisper_tiny_en
    """
    from models.registry import card, load

    for found in [card(key) for key in keys]:
        console.say(f"{found.key}: {found.source}")
        load(found.key).close()
        console.write(f"{found.key} is ready")


def _as_dict(card: Card) -> dict[str, object]:
    knobs = {kind: model.model_json_schema() for kind, model in card.tasks.items()}  # type: ignore[attr-defined]
    return {
        "key": card.key,
        "family": card.family,
        "title": card.title,
        "tasks": sorted(card.tasks),
        "licence": card.licence,
        "source": card.source,
        "experimental": card.experimental,
        "sample_rate": card.sample_rate,
        "languages": list(card.languages),
        "knobs": knobs,
    }


def _table(cards: list[Card]) -> None:
    from rich.table import Table

    rows = [(card.key, _state(card), ", ".join(sorted(card.tasks)), card.title) for card in cards]
    table = Table(box=None, pad_edge=False)
    for name, *cells in zip(("Key", "State", "Tasks"), *(row[:3] for row in rows), strict=True):
        table.add_column(name, no_wrap=True, min_width=max(map(len, cells)))
    table.add_column("Title", no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*row)
    console.out.print(table)


def _state(card: Card) -> str:
    return "experimental" if card.experimental else "done"


def _facts(card: Card) -> None:
    facts = {"title": card.title, "state": _state(card), "licence": card.licence, "weights": card.source}
    facts |= {"sample rate": f"{card.sample_rate} Hz"} if card.sample_rate else {}
    facts |= {"languages": ", ".join(card.languages)} if card.languages else {}
    console.out.print(card.key, style="bold")
    for name, value in facts.items():
        console.out.print(f"  {name}: {value}", markup=False, highlight=False)


def _knobs(card: Card) -> None:
    for kind, knobs in card.tasks.items():
        console.out.print(f"\n{kind} takes", style="bold")
        for name, info in knobs.model_fields.items():  # type: ignore[attr-defined]
            bounds = ", ".join(str(mark) for mark in info.metadata)
            line = f"  {name} = {info.default!r}  {bounds}  {info.description or ''}".rstrip()
            console.out.print(line, markup=False, highlight=False)


def register(app: typer.Typer) -> None:
    app.command("models")(models)
    app.command("pull", no_args_is_help=True)(pull)
