"""openai-whisper's own model with the port's weights, and the sound that both sides hear."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache

import numpy as np
import soundfile
import torch
import whisper
from whisper.model import ModelDimensions

from models.whisper.graph import WhisperPort
from oracles import speech

RATE = 16_000


def reference_of(port: WhisperPort) -> whisper.model.Whisper:
    """The reference's network; its strict loading checks the names of the port's tensors."""
    config = asdict(port.config)
    heads = torch.zeros(config["n_text_layer"], config["n_text_head"], dtype=torch.bool)
    for layer, head in config.pop("alignment_heads"):
        heads[layer, head] = True
    model = whisper.model.Whisper(ModelDimensions(**config))
    state = port.modules["whisper"].state_dict()
    state.pop("decoder.head.weight")
    model.load_state_dict(state)
    model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    return model.eval().requires_grad_(False)


@cache
def _read(path: str) -> np.ndarray:
    return soundfile.read(path, dtype="float32")[0]


def spoken(count: int) -> list[np.ndarray]:
    """The first clips as samples [T] at 16 kHz."""
    return [_read(str(one.path)) for one in speech.clips()[:count]]
