"""Text to the phonemes of pieces: a sentence or a few each, the first one short, all within the model's window."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from models.components.text.sentences import CLAUSE_END, fitting, packed, pieces_at, sentences
from models.kokoro.config import MAX_PHONEMES

BOUNDARY = 0  # the token before and after every piece
SHORTEST_OPENING = 15  # phonemes: a clause as short as "Well," is not worth a piece of its own


def longest(speed: float) -> int:
    """Most phonemes of a piece: the window, less for slow speech, whose frames would be too many."""
    return max(1, min(MAX_PHONEMES, int(MAX_PHONEMES * 2 * speed)))


def pieces(text: str, phonemize: Callable[[str], str], speed: float, first: int, target: int) -> list[str]:
    """Phonemes of each piece of a text, [] when nothing in it can be spoken.

    Pieces end where sentences end; the first is cut at a clause when its sentence is longer than `first`.
    """
    limit = longest(speed)
    parts = [part for sentence in sentences(text) for part in fitting(sentence, limit, lambda t: len(phonemize(t)))]
    spoken = [said for part in _opening(parts, phonemize, first) if (said := phonemize(part).strip())]
    counts = packed([len(said) + 1 for said in spoken], first + 1, min(target, limit) + 1)
    stops = np.cumsum(counts).tolist()
    return [" ".join(spoken[stop - count : stop]) for stop, count in zip(stops, counts, strict=True)]


def _opening(parts: list[str], phonemize: Callable[[str], str], first: int) -> list[str]:
    """The parts, the first of them cut after the clauses that fit a short opening piece."""
    if not parts or len(phonemize(parts[0])) <= first:
        return parts
    head = ""
    for clause in pieces_at(CLAUSE_END, parts[0])[:-1]:
        if len(phonemize(head + clause)) > first:
            break
        head += clause
    if len(phonemize(head)) < SHORTEST_OPENING:
        return parts
    return [head, parts[0][len(head) :], *parts[1:]]


def tokens(phonemes: str, vocab: Mapping[str, int]) -> np.ndarray:
    """Token ids between boundaries [n + 2] int64; every phoneme is in the vocabulary."""
    return np.array([BOUNDARY, *(vocab[p] for p in phonemes), BOUNDARY], np.int64)
