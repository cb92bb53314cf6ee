"""Times of single requests, on the client's clock, from the moment it began to send."""

from __future__ import annotations

from itertools import pairwise

from perf.metrics.base import Spread, content, ended
from perf.schema import Chunk, Record


class FirstContent(Spread):
    """To the first content: headers, a bare WAV header and role-only deltas are not content."""

    name, title, unit, better = "ttft", "Time to first token", "s", "lower"
    needs = "content"

    def of(self, record: Record) -> list[float]:
        return [c.t - record.sent for c in content(record)[:1]]


class FirstAudio(FirstContent):
    """To the first non-empty audio samples."""

    name, title = "ttfa", "Time to first audio"
    needs = "audio"

    def of(self, record: Record) -> list[float]:
        return super().of(record) if record.sound else []


class EndToEnd(Spread):
    """To the end of the response."""

    name, title, unit, better = "e2e", "End-to-end latency", "s", "lower"
    needs = "a complete response"

    def of(self, record: Record) -> list[float]:
        return [ended(record) - record.sent]


class ChunkGap(Spread):
    """Between content events, after the first. The time to the first is no gap."""

    name, title, unit, better = "icl", "Gap between chunks", "s", "lower"
    needs = "two content chunks"

    def of(self, record: Record) -> list[float]:
        times = [c.t for c in content(record)]
        return [b - a for a, b in pairwise(times)]


class TokenGap(Spread):
    """Between tokens after the first event: a chunk of k tokens is k gaps of a k-th of its own.

    Needs a token count for each chunk: the server's, or one each where its total equals the number of chunks.
    """

    name, title, unit, better = "itl", "Gap between tokens", "s", "lower"
    needs = "two content chunks with token counts"

    def of(self, record: Record) -> list[float]:
        chunks = content(record)
        gaps: list[float] = []
        for (before, after), k in zip(pairwise(chunks), token_counts(record)[1:], strict=False):
            gaps += [(after.t - before.t) / k] * k
        return gaps


class TimePerToken(Spread):
    """(end to end - first content) / (tokens - 1); undefined under two tokens."""

    name, title, unit, better = "tpot", "Time per output token", "s", "lower"
    needs = "two tokens, counted by the server"

    def of(self, record: Record) -> list[float]:
        if not record.tokens or record.tokens < 2 or not content(record):
            return []
        return [(ended(record) - content(record)[0].t) / (record.tokens - 1)]


def token_counts(record: Record) -> list[int]:
    """Tokens of each content chunk, or [] where they are not known."""
    chunks: list[Chunk] = content(record)
    if chunks and all(c.tokens for c in chunks):
        return [c.tokens for c in chunks]
    return [1] * len(chunks) if record.tokens == len(chunks) else []
