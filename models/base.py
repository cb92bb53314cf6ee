"""What every family shares: the base of its knobs, and how a family module looks to the registry."""

from __future__ import annotations

from typing import Protocol

from pydantic import BaseModel, ConfigDict

from serving.core.contract import Card, Model, Options


class Knobs(BaseModel):
    """A port's request fields, with defaults and bounds. Unknown fields are refused; the API names the nearest."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Family(Protocol):
    """`models.<family>`: importing it is cheap; `load` imports torch code."""

    CARDS: tuple[Card, ...]

    @staticmethod
    def load(card: Card, options: Options) -> Model: ...
