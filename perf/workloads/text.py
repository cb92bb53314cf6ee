"""Text to speak and prompts to answer: made from a small grammar, so that any number of them are distinct."""

from __future__ import annotations

import random

from perf.workloads.base import Item, Workload

WHO = (
    "The old miller",
    "Her brother",
    "A young doctor",
    "Our neighbour",
    "The night train",
    "My grandmother",
)
DID = ("carried", "forgot", "painted", "repaired", "followed", "described", "counted", "remembered")
WHAT = ("the wooden boat", "a box of letters", "the quiet street", "three silver coins", "an open window")
WHERE = ("by the river", "behind the station", "under a grey sky", "near the market", "at the edge of town")
WHEN = ("before breakfast", "on Tuesday", "after the storm", "late in the autumn", "at half past nine")
ASK = ("Explain", "Summarise", "Compare", "Describe", "Question", "Continue")


def sentence(rng: random.Random) -> str:
    """About ten words."""
    return f"{rng.choice(WHO)} {rng.choice(DID)} {rng.choice(WHAT)} {rng.choice(WHERE)} {rng.choice(WHEN)}."


def sentences(n: int = 64, seed: int = 0, parts: tuple[int, int] = (1, 1)) -> Workload:
    """Speech: `n` distinct texts of `parts` (fewest, most) sentences each."""
    rng = random.Random(seed)
    texts: dict[str, None] = {}
    while len(texts) < n:
        texts[" ".join(sentence(rng) for _ in range(rng.randint(*parts)))] = None
    items = [Item(f"text-{i:04d}", text) for i, text in enumerate(texts)]
    return Workload("long texts" if parts[1] > 1 else "sentences", "speech", items, seed)


def phrases(n: int = 64, seed: int = 0) -> Workload:
    """Speech: `n` distinct texts of about six words."""
    rng = random.Random(seed)
    texts: dict[str, None] = {}
    while len(texts) < n:
        texts[f"{rng.choice(WHO)} {rng.choice(DID)} {rng.choice(WHAT)}."] = None
    return Workload("phrases", "speech", [Item(f"text-{i:04d}", text) for i, text in enumerate(texts)], seed)


def prompts(n: int = 64, seed: int = 0, words: int = 50, max_tokens: int = 64) -> Workload:
    """Chat: `n` distinct prompts of exactly `words` words; answers of at most `max_tokens` tokens."""
    rng = random.Random(seed)
    items = []
    for i in range(n):
        text = [f"{rng.choice(ASK)}", f"story-{i}:"]
        while len(text) < words:
            text += sentence(rng).split()
        items.append(Item(f"prompt-{i:04d}", " ".join(text[:words]), body={"max_tokens": max_tokens}))
    return Workload(f"prompts of {words} words", "chat", items, seed)
