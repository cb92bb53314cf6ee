"""The toy family: a few small networks that use every concept of the core. It speaks, paints and listens, badly.

It exists so that everything around a model can be tested where no weights are: scheduler, resources, routes,
parity and bench. Its checkpoint is a recipe.
"""

from __future__ import annotations

from models.toy.request import ListenKnobs, PaintKnobs, SpeakKnobs
from serving.core.contract import Card, Model, Options

CARDS = (
    Card(
        key="toy",
        family="toy",
        title="Toy: random weights that use every concept of the core",
        tasks={"speak": SpeakKnobs, "image": PaintKnobs, "generate": ListenKnobs},
        licence="Apache-2.0",
        source="recipe seed 0",
        experimental=False,
        sample_rate=8000,
    ),
)


def load(card: Card, options: Options) -> Model:
    from models.toy.graph import Toy

    return Toy(options)
