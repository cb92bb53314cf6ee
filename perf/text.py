"""Word error rates, with the normaliser that speech recognition reports use where it is installed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache


@cache
def normaliser() -> tuple[str, Callable[[str], str]]:
    """A name and a function: openai-whisper's English normaliser, or else lower case without punctuation."""
    try:
        from whisper.normalizers import EnglishTextNormalizer
    except ImportError:
        return "basic", lambda text: " ".join(re.findall(r"[\w']+", text.lower()))
    return "whisper-english", EnglishTextNormalizer()


def word_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Corpus rate, after normalising: edits over reference words. None of these: 0 if nothing was heard."""
    import jiwer

    _, clean = normaliser()
    pairs = [(clean(a), clean(b)) for a, b in zip(references, hypotheses, strict=True)]
    spoken = [(a, b) for a, b in pairs if a]
    invented = sum(len(b.split()) for a, b in pairs if not a)
    if not spoken:
        return float(invented > 0)
    found = jiwer.process_words([a for a, _ in spoken], [b for _, b in spoken])
    words = found.hits + found.substitutions + found.deletions
    return (found.substitutions + found.deletions + found.insertions + invented) / words
