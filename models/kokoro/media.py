"""Text to the phonemes of pieces: a sentence or a few each, the first one short, all within the model's window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from models.components.text.sentences import CLAUSE_END, fitting, pieces_at, sentences
from models.kokoro.config import MAX_PHONEMES

BOUNDARY = 0  # the token before and after every piece
SHORTEST_OPENING = 15  # phonemes: a clause as short as "Well," is not worth a piece of its own


def longest(speed: float) -> int:
    """Most phonemes of a piece: the window, less for slow speech, whose frames would be too many."""
    return max(1, min(MAX_PHONEMES, int(MAX_PHONEMES * 2 * speed)))


def pieces(text: str, phonemize: Callable[[str], str], speed: float, first: int, target: int) -> Iterator[str]:
    """Phonemes of each piece of a text, none when nothing in it can be spoken; a piece is worked out when asked for.

    Pieces end where sentences end; the first is cut at a clause when its sentence is longer than `first`.
    """
    limit = longest(speed)
    most = first
    said: list[str] = []
    for part in _parts(text, phonemize, limit, first):
        spoken = phonemize(part).strip()
        if not spoken:
            continue
        if said and len(" ".join([*said, spoken])) > most:
            yield " ".join(said)
            said, most = [], min(target, limit)
        said.append(spoken)
    if said:
        yield " ".join(said)


def _parts(text: str, phonemize: Callable[[str], str], limit: int, first: int) -> Iterator[str]:
    """Sentences, those that are too long in parts, the opening one in two where it is longer than `first`."""
    fits = (part for one in sentences(text) for part in fitting(one, limit, lambda t: len(phonemize(t))))
    for opening in fits:
        yield from _opening(opening, phonemize, first)
        break
    yield from fits


def _opening(part: str, phonemize: Callable[[str], str], first: int) -> list[str]:
    """The first part, cut after the clauses that fit a short opening piece."""
    if len(phonemize(part)) <= first:
        return [part]
    head = ""
    for clause in pieces_at(CLAUSE_END, part)[:-1]:
        if len(phonemize(head + clause)) > first:
            break
        head += clause
    if len(phonemize(head)) < SHORTEST_OPENING:
        return [part]
    return [head, part[len(head) :]]


def tokens(phonemes: str, vocab: Mapping[str, int]) -> np.ndarray:
    """Token ids between boundaries [n + 2] int64; every phoneme is in the vocabulary."""
    return np.array([BOUNDARY, *(vocab[p] for p in phonemes), BOUNDARY], np.int64)
