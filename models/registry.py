"""Keys to models. A family is a package in `models/` with `CARDS` and `load`; being there registers it."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import cast

import models
from models.base import Family
from serving.core.contract import Card, LoadedModel, Options
from serving.errors import NotFound, nearest

SHARED = {"base", "components", "registry", "tests", "weights"}


@cache
def families() -> dict[str, Family]:
    """Family name -> its module, for every family package."""
    names = sorted(m.name for m in pkgutil.iter_modules(models.__path__) if m.name not in SHARED)
    return {name: cast(Family, importlib.import_module(f"models.{name}")) for name in names}


@cache
def cards() -> dict[str, Card]:
    """Key -> card, for every key of every family."""
    found: dict[str, Card] = {}
    for name, family in families().items():
        for card in family.CARDS:
            if card.key in found or card.family != name:
                raise ValueError(f"{name}: the card {card.key!r} is taken or names family {card.family!r}")
            found[card.key] = card
    return found


def card(key: str) -> Card:
    """The card of a key; `NotFound` names the nearest one."""
    if key not in cards():
        raise NotFound(f'No model "{key}".{nearest(key, cards())}', param="model", code="model_not_found")
    return cards()[key]


def load(key: str, options: Options | None = None) -> LoadedModel:
    """Build the port of a key and load its weights."""
    found = card(key)
    options = options or Options()
    return LoadedModel(found, options, families()[found.family].load(found, options))
