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
    """List the models: tasks, source of weights, licence, and whether the port is done.

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
    else:
        _table(chosen)
    if key and not as_json:
        _knobs(chosen[0])


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

    table = Table("Key", "Title", "Tasks", "Weights", "Licence", "State", box=None, pad_edge=False)
    for card in cards:
        state = "experimental" if card.experimental else "done"
        table.add_row(card.key, card.title, ", ".join(sorted(card.tasks)), card.source, card.licence, state)
    console.out.print(table)


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
