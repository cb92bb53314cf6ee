"""Word and character error rates over a corpus, with their parts and an interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from parity.harness.compare import METRICS, Metric, scalar

Normaliser = Callable[[str], str]


def whisper_normaliser(language: str = "en") -> Normaliser:
    """openai-whisper's text normaliser, the one that published word error rates use. Needs the extra `reference`."""
    from whisper.normalizers import BasicTextNormalizer, EnglishTextNormalizer

    return EnglishTextNormalizer() if language == "en" else BasicTextNormalizer()


@dataclass(frozen=True)
class ErrorRate:
    """(S + D + I) / N over a corpus. `clips` has (errors, N) of each clip."""

    substitutions: int
    deletions: int
    insertions: int
    length: int
    clips: tuple[tuple[int, int], ...]

    @property
    def rate(self) -> float:
        """Infinite if something was said where nothing should be."""
        errors = self.substitutions + self.deletions + self.insertions
        return errors / self.length if self.length else (float("inf") if errors else 0.0)

    def interval(self, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
        """Percentile bootstrap over clips, seeded: clips are drawn whole, because errors cluster in them."""
        counts = np.array(self.clips, dtype=np.float64).reshape(-1, 2)
        draws = np.random.default_rng(seed).integers(0, len(counts), (resamples, len(counts)))
        errors, lengths = counts[draws].sum(axis=1).T
        rates = errors / np.maximum(lengths, 1.0)
        low, high = np.quantile(rates, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def outliers(self, above: float = 0.5) -> list[int]:
        """Indices of clips whose own rate is above a threshold."""
        return [i for i, (errors, length) in enumerate(self.clips) if errors > above * length]


def _error_rate(
    expected: Sequence[str], actual: Sequence[str], normalise: Normaliser | None, *, characters: bool
) -> ErrorRate:
    import jiwer

    if len(expected) != len(actual):
        raise ValueError(f"{len(expected)} references and {len(actual)} hypotheses")
    clean = normalise or str
    process = jiwer.process_characters if characters else jiwer.process_words
    rows = []
    for reference, hypothesis in zip(map(clean, expected), map(clean, actual), strict=True):
        if not reference.strip():  # jiwer wants a reference with words
            said = len(hypothesis.strip() if characters else hypothesis.split())
            rows.append((0, 0, said, 0))
            continue
        out = process(reference, hypothesis)
        length = out.hits + out.substitutions + out.deletions
        rows.append((out.substitutions, out.deletions, out.insertions, length))
    s, d, i, n = (sum(column) for column in zip(*rows, strict=True)) if rows else (0, 0, 0, 0)
    return ErrorRate(s, d, i, n, tuple((a + b + c, length) for a, b, c, length in rows))


def word_error_rate(expected: Sequence[str], actual: Sequence[str], normalise: Normaliser | None = None) -> ErrorRate:
    """WER of a corpus by jiwer's alignment; pass `whisper_normaliser()` to compare with published figures."""
    return _error_rate(expected, actual, normalise, characters=False)


def character_error_rate(
    expected: Sequence[str], actual: Sequence[str], normalise: Normaliser | None = None
) -> ErrorRate:
    """CER of a corpus, for languages without spaces."""
    return _error_rate(expected, actual, normalise, characters=True)


for _name in ("wer", "cer"):
    METRICS[_name] = Metric(_name, "lower", scalar)
