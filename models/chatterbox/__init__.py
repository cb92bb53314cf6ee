"""Chatterbox (Resemble AI): speech in the voice of a clip; in English, in 23 languages, and distilled (Turbo)."""

from __future__ import annotations

from models.chatterbox.config import SAMPLE_RATE
from models.chatterbox.request import LANGUAGES, MultilingualKnobs, SpeakKnobs, TurboKnobs
from serving.core.contract import Card, Model, Options


def _card(key: str, title: str, knobs: type[SpeakKnobs], source: str, languages: tuple[str, ...] = ("en",)) -> Card:
    return Card(
        key=key,
        family="chatterbox",
        title=title,
        tasks={"speak": knobs},
        licence="MIT",
        source=source,
        sample_rate=SAMPLE_RATE,
        languages=languages,
    )


CARDS = (
    _card(
        "chatterbox",
        "Chatterbox: a cloned voice, guidance, emotion",
        SpeakKnobs,
        "hub ResembleAI/chatterbox@1b475dffa71fb191cb6d5901215eb6f55635a9b6",
    ),
    _card(
        "chatterbox_multilingual",
        "Chatterbox Multilingual: the same in 23 languages",
        MultilingualKnobs,
        "path (hub ResembleAI/chatterbox, not pinned)",
        LANGUAGES,
    ),
    _card(
        "chatterbox_turbo",
        "Chatterbox Turbo: distilled",
        TurboKnobs,
        "path (hub ResembleAI/chatterbox-turbo, not pinned)",
    ),
)


def load(card: Card, options: Options) -> Model:
    """The port of a key. Raises `SetupError`."""
    from models.chatterbox.checkpoint import load_port

    return load_port(card.key, options)
