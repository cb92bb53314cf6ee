"""Cuts text for speech without losing a character: sentences, then clauses, words, and a hard cut where it must.

Joining what any function here returns gives the text back. `[word](/ipa/)` markup, numbers ("9:45", "$3.50"),
initials and common abbreviations are never cut inside.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

SHORT_FORMS = (
    "mr mrs ms dr prof st sr jr vs etc no vol fig inc ltd co corp dept est approx gen gov sen rep rev hon col sgt capt"
    " lt cmdr jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun a.m p.m e.g i.e cf al"
)
ABBREVIATIONS = frozenset(SHORT_FORMS.split())
MARKUP = r"\[[^\[\]\n]*\]\([^()\n]*\)"
NEAR = 32  # characters before a full stop that can hold an abbreviation
CLOSERS = "\"'”’)]»"
SENTENCE_END = re.compile(rf"(?:[.!?…]+[{re.escape(CLOSERS)}]*(?=\s|$)|[。！？]+[」』）”]*)\s*|\n\s*\n\s*")
CLAUSE_END = re.compile(rf"[,;:—–][{re.escape(CLOSERS)}]*\s+|—|[、，；：]\s*|\n\s*")
WORD_END = re.compile(r"\s+")

Measure = Callable[[str], int]


def sentences(text: str) -> list[str]:
    """The sentences of a text, each with the space behind it; [] for ""."""
    return _cut(text, [end for end in _ends(SENTENCE_END, text) if not _goes_on(text, end)])


def fitting(text: str, limit: int, measure: Measure = len) -> list[str]:
    """Parts whose `measure` is at most `limit`, cut at clauses, else between words, else anywhere.

    `measure` must not shrink when text is added. A single character is never cut, whatever it measures.
    """
    if measure(text) <= limit or len(text) <= 1:
        return [text] if text else []
    for pattern in (CLAUSE_END, WORD_END):
        parts = pieces_at(pattern, text)
        if len(parts) > 1:
            return [one for group in _grouped(parts, limit, measure) for one in fitting(group, limit, measure)]
    middle = len(text) // 2
    return fitting(text[:middle], limit, measure) + fitting(text[middle:], limit, measure)


def pieces_at(pattern: re.Pattern[str], text: str) -> list[str]:
    """The text cut after each match of a pattern that does not lie inside markup."""
    return _cut(text, _ends(pattern, text))


def packed(sizes: Sequence[int], first: int, target: int) -> list[int]:
    """How many neighbours go together: groups of at most `target`, the first of at most `first`, none empty.

    A part that is larger than its group's limit stands alone.
    """
    counts: list[int] = []
    total = 0
    for size in sizes:
        limit = target if len(counts) > 1 else first
        if counts and total + size <= limit:
            counts[-1] += 1
            total += size
        else:
            counts.append(1)
            total = size
    return counts


def _grouped(parts: Sequence[str], limit: int, measure: Measure) -> list[str]:
    """Neighbours joined while they fit; a part that is too long stands alone."""
    groups: list[str] = []
    start = 0
    while start < len(parts):
        stop = start + _most(parts[start:], limit, measure)
        groups.append("".join(parts[start:stop]))
        start = stop
    return groups


def _most(parts: Sequence[str], limit: int, measure: Measure) -> int:
    """How many of the parts fit together, at least one: doubling, then halving, since a measure may be slow."""

    def fits(count: int) -> bool:
        return measure("".join(parts[:count])) <= limit

    low, high = 1, 2
    while high <= len(parts) and fits(high):
        low, high = high, 2 * high
    high = min(high, len(parts) + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _cut(text: str, ends: Sequence[int]) -> list[str]:
    starts = [0, *ends]
    return [part for a, b in zip(starts, [*ends, len(text)], strict=True) if (part := text[a:b])]


def _ends(pattern: re.Pattern[str], text: str) -> list[int]:
    """Where matches end, but for those inside markup."""
    either = re.compile(f"({MARKUP})|(?:{pattern.pattern})")
    return [found.end() for found in either.finditer(text) if found[1] is None and found.end() < len(text)]


def _goes_on(text: str, end: int) -> bool:
    """Whether the full stop before `end` belongs to an abbreviation, an initial, or a sentence that goes on."""
    near = text[max(0, end - NEAR) : end]
    before = near.rstrip()
    if not before.endswith(".") or near[len(before) :].count("\n") > 1:
        return False
    word = re.split(r"\s", before)[-1].lstrip("\"'“‘([«").rstrip(".").lower()
    initial = len(word) == 1 and word.isalpha() and word not in "ai"
    return initial or word in ABBREVIATIONS or text[end : end + 1].islower()
