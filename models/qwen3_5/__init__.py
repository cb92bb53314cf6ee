"""Qwen3.5 and Qwen3.8, dense: chat over gated DeltaNet and full attention (the language model; no pictures yet)."""

from __future__ import annotations

from models.qwen3_5.request import QwenChatKnobs, QwenTextKnobs
from serving.core.contract import Card, Model, Options

REPOSITORIES = {
    "qwen3_5_0p8b": "Qwen/Qwen3.5-0.8B",
    "qwen3_5_2b": "Qwen/Qwen3.5-2B",
    "qwen3_5_4b": "Qwen/Qwen3.5-4B",
    "qwen3_5_9b": "Qwen/Qwen3.5-9B",
    "qwen3_5_27b": "Qwen/Qwen3.5-27B",
    "qwen3_8_27b": "Qwen/Qwen3.8-27B",
}
DTYPES = ("float32", "bfloat16")


def _card(key: str, repository: str) -> Card:
    return Card(
        key=key,
        family="qwen3_5",
        title=repository.partition("/")[2].replace("-", " "),
        tasks={"chat": QwenChatKnobs, "generate": QwenTextKnobs},
        licence="Apache-2.0",
        source=f"a folder with the files of {repository}",
        experimental=True,
    )


CARDS = tuple(_card(key, repository) for key, repository in REPOSITORIES.items())


def load(card: Card, options: Options) -> Model:
    """The port of a checkpoint folder, `options.weights`; its config.json decides the size. Raises `SetupError`."""
    from pathlib import Path

    import torch

    from models.components.text.conversation import ChatTokenizer
    from models.qwen3_5 import weights
    from models.qwen3_5.graph import Qwen35Port
    from models.qwen3_5.modules import Qwen35
    from models.weights.loading import load_strict, on_meta
    from models.weights.sources import Local, fetch
    from serving.errors import SetupError, nearest

    if not options.weights:
        repository = REPOSITORIES[card.key]
        raise SetupError(
            f"{card.key}: no revision of {repository} is pinned; give a folder with its files.", param="weights"
        )
    name = str(options.model.get("dtype", DTYPES[0]))
    if name not in DTYPES:
        raise SetupError(f'No dtype "{name}".{nearest(name, DTYPES)}', param="dtype")
    folder = Path(fetch(Local(options.weights)))
    config, tensors = weights.read(folder)
    dtype: torch.dtype = getattr(torch, name)
    net = load_strict(on_meta(lambda: Qwen35(config)), tensors, dtype=dtype).to(options.device).eval()
    return Qwen35Port(config, net, ChatTokenizer(folder), options)
