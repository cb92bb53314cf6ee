"""Text to the phonemes of pieces: a sentence or a few each, the first one short, all within the model's window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

import numpy as np

from models.components.text.sentences import CLAUSE_END, fitting, pieces_at, sentences
from models.kokoro.config import MAX_PHONEMES

BOUNDARY = 0  # the token before and after every piece
SHORTEST = 15  # phonemes: a clause as short as "Well," is not worth a piece of its own
PACE = 0.6  # seconds that making a second of speech may take


def longest(speed: float) -> int:
    """Most phonemes of a piece: the window, less for slow speech, whose frames would be too many."""
    return max(1, min(MAX_PHONEMES, int(MAX_PHONEMES * 2 * speed)))


def pieces(text: str, phonemize: Callable[[str], str], speed: float, first: int, target: int) -> Iterator[str]:
    """Phonemes of each piece of a text, none when nothing in it can be spoken; a piece is worked out when asked for.

    Pieces end where sentences end, and hold as many as fit `target`. A sentence is cut at a clause where it is longer
    than `first` and opens the text, or so long that what was said before it would be over before it is made.
    """
    limit = longest(speed)
    opening = total = 0
    said: list[str] = []

    def most() -> int:
        """Phonemes that are made while those before them are played: r (opened + x) <= opened, r without the first."""
        return int(total * (1 / PACE - 1)) + opening if total else first

    def closed(piece: str) -> str:
        nonlocal opening, total
        opening, total = opening or len(piece), total + len(piece)
        return piece

    for sentence in (part for one in sentences(text) for part in fitting(one, limit, lambda t: len(phonemize(t)))):
        spoken = phonemize(sentence).strip()
        if said and len(" ".join([*said, spoken])) > min(target, limit, most()):
            yield closed(" ".join(said))
            said = []
        while not said and len(spoken) > most() and (at := _clauses(sentence, phonemize, most())):
            yield closed(phonemize(sentence[:at]).strip())
            sentence = sentence[at:]
            spoken = phonemize(sentence).strip()
        if spoken:
            said.append(spoken)
    if said:
        yield " ".join(said)


def _clauses(sentence: str, phonemize: Callable[[str], str], most: int) -> int:
    """Where to cut a sentence after the clauses that fit, or after the first; 0 where a part would be too short."""
    within: list[int] = []
    for end in list(accumulate(map(len, pieces_at(CLAUSE_END, sentence))))[:-1]:
        head = len(phonemize(sentence[:end]))
        if head < SHORTEST:
            continue
        if head > most:
            within = within or [end]
            break
        within.append(end)
    return next((end for end in reversed(within) if len(phonemize(sentence[end:])) >= SHORTEST), 0)


def tokens(phonemes: str, vocab: Mapping[str, int]) -> np.ndarray:
    """Token ids between boundaries [n + 2] int64; every phoneme is in the vocabulary."""
    return np.array([BOUNDARY, *(vocab[p] for p in phonemes), BOUNDARY], np.int64)
