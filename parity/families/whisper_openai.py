"""openai-whisper's own model with the port's weights, and the sound that both sides hear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from hashlib import sha256

import numpy as np
import soundfile
import torch
import whisper
from torch import Tensor
from whisper.model import ModelDimensions

from models.whisper.graph import WhisperPort
from oracles import speech

RATE = 16_000


@cache
def reference_of(port: WhisperPort) -> whisper.model.Whisper:
    """The reference's network, once for a port; its strict loading checks the names of the port's tensors.

    It hears each window once: the reference encodes a window again for every temperature and for its words.
    """
    config = asdict(port.config)
    heads = torch.zeros(config["n_text_layer"], config["n_text_head"], dtype=torch.bool)
    for layer, head in config.pop("alignment_heads"):
        heads[layer, head] = True
    model = whisper.model.Whisper(ModelDimensions(**config))
    state = port.modules["whisper"].state_dict()
    state.pop("decoder.head.weight")
    model.load_state_dict(state)
    model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    model.encoder.forward = _remembered(model.encoder.forward)
    return model.eval().requires_grad_(False)


def _remembered(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The encoder's answers by what it was given, window by window."""
    held: dict[bytes, Tensor] = {}

    def once(mel: Tensor) -> Tensor:
        keys = [sha256(one.contiguous().numpy()).digest() for one in mel]
        for key, one in zip(keys, mel.split(1), strict=True):
            if key not in held:
                held[key] = forward(one)
        return torch.cat([held[key] for key in keys])

    return once


@cache
def _read(path: str) -> np.ndarray:
    return soundfile.read(path, dtype="float32")[0]


def spoken(count: int) -> list[np.ndarray]:
    """The first clips as samples [T] at 16 kHz."""
    return [_read(str(one.path)) for one in speech.clips()[:count]]
