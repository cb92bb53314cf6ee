"""Pictures to make, films to make, pictures to talk about, and scenes to act in: all from a seed."""

from __future__ import annotations

import io
import random

import numpy as np
from PIL import Image

from perf.workloads.base import Item, Workload
from perf.workloads.text import ASK, DID, WHAT, WHEN, WHERE, WHO, sentence

STYLE = ("an oil painting", "a photograph", "a pencil drawing", "a woodcut", "a watercolour")


def pictures(n: int = 32, seed: int = 0, size: str = "auto") -> Workload:
    """Image: `n` distinct descriptions; `size` as OpenAI writes it."""
    return Workload("descriptions of pictures", "image", _described(n, seed, {"size": size}), seed)


def films(n: int = 16, seed: int = 0, size: str = "auto") -> Workload:
    """Video: `n` distinct descriptions."""
    return Workload("descriptions of films", "video", _described(n, seed, {"size": size}), seed)


def _described(n: int, seed: int, body: dict[str, str]) -> list[Item]:
    rng, texts = random.Random(seed), dict[str, None]()
    body = {name: value for name, value in body.items() if value != "auto"}
    while len(texts) < n:
        texts[f"{rng.choice(STYLE)}: {sentence(rng)}"] = None
    return [Item(f"scene-{i:04d}", text, body=body) for i, text in enumerate(texts)]


def seen(n: int = 32, seed: int = 0, side: int = 224, max_tokens: int = 64) -> Workload:
    """Chat with a picture: `n` distinct questions, each with a picture of its own of `side` pixels."""
    rng = random.Random(seed)
    items = []
    for i in range(n):
        text = f"{rng.choice(ASK)} picture {i}: is it {rng.choice(WHAT)} {rng.choice(WHERE)}?"
        image = _picture(seed * 100_003 + i, side)
        items.append(Item(f"seen-{i:04d}", text, image=image, body={"max_tokens": max_tokens}))
    return Workload(f"questions on pictures of {side} pixels", "chat", items, seed)


def scenes(n: int = 32, seed: int = 0, side: int = 224) -> Workload:
    """Actions: `n` distinct instructions, each with a camera's picture."""
    rng = random.Random(seed)
    items = []
    for i in range(n):
        text = f"Scene {i}: {rng.choice(WHO)} {rng.choice(DID)} {rng.choice(WHAT)} {rng.choice(WHEN)}."
        items.append(Item(f"act-{i:04d}", text, image=_picture(seed * 100_003 + i, side)))
    return Workload("instructions with a picture", "generate", items, seed)


def _picture(seed: int, side: int) -> bytes:
    """A PNG of smooth colour that no other seed has."""
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((side, side), Image.Resampling.BILINEAR).save(buffer, "PNG")
    return buffer.getvalue()
