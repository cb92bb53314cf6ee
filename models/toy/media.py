"""Text to ids, noise to patches, patches to pixels."""

from __future__ import annotations

import re

import numpy as np
import torch

from models.toy.config import ToyConfig


def ids(text: str, c: ToyConfig, voice: str = "low") -> np.ndarray:
    """A voice token, then one token a byte: [1 + bytes] int64, none of them the end token."""
    letters = np.frombuffer(text.encode(), np.uint8).astype(np.int64) % (c.vocab - 4) + 4
    return np.concatenate([[2 if voice == "low" else 3], letters])


def sentences(text: str) -> list[str]:
    """The text cut after full stops; joined again it is the text."""
    return re.findall(r"[^.]*\.?\s*", text)[:-1] or [text]


def noise(seed: int, patches: int, c: ToyConfig) -> torch.Tensor:
    """Seeded noise [patches, patch * patch * 3]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(patches, c.patch * c.patch * 3, generator=generator)


def pixels(x: np.ndarray, width: int, height: int, c: ToyConfig) -> np.ndarray:
    """Patches [P, patch * patch * 3] to uint8 [height, width, 3]."""
    rows, columns = height // c.patch, width // c.patch
    grid = x.reshape(rows, columns, c.patch, c.patch, 3).transpose(0, 2, 1, 3, 4).reshape(height, width, 3)
    return (np.clip(grid * 0.5 + 0.5, 0, 1) * 255).round().astype(np.uint8)
