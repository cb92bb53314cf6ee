"""Stop strings in text that comes in pieces: no character of one ever leaves, however the pieces are cut."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def overlap(text: str, tag: str) -> int:
    """The length of the longest end of `text` that is a beginning of `tag`, but not the whole of it."""
    for size in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0


class StopStrings:
    """Passes text on until one of the `stops` is complete.

    The first stop to be complete counts; of those complete at once the longest. So the result does not depend on
    the pieces.
    """

    def __init__(self, stops: Sequence[str] = ()) -> None:
        if "" in stops:
            raise ValueError("a stop string must not be empty")
        self.stops = tuple(stops)
        self._whole = _any(self.stops)
        self._begun = _any({stop[:size] for stop in self.stops for size in range(1, len(stop))}, at_end=True)
        self.found: str | None = None
        self.cut = 0  # characters from the stop on
        self._held = ""

    @property
    def held(self) -> int:
        """Characters that wait because they could be the beginning of a stop."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """The text that is safe to send; "" once a stop was found."""
        if self.found is not None:
            self.cut += len(text)
            return ""
        if not self.stops:
            return text
        text = self._held + text
        if self._whole.search(text):
            return self._end(text)
        begun = self._begun.search(text)
        keep = begun.start() if begun else len(text)
        self._held = text[keep:]
        return text[:keep]

    def _end(self, text: str) -> str:
        """What comes before the stop that is complete first."""
        ends = [(at + len(stop), -len(stop), stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        end, size, self.found = min(ends)
        self._held, self.cut = "", len(text) - end - size
        return text[: end + size]

    def finish(self) -> str:
        """What waited and turned out not to be a stop."""
        text, self._held = self._held, ""
        return text


def _any(texts: Iterable[str], *, at_end: bool = False) -> re.Pattern[str]:
    """Matches any of these; the leftmost match at the end of a text is the longest one."""
    choices = "|".join(map(re.escape, sorted(texts)))
    return re.compile(rf"(?:{choices or '(?!)'})" + (r"\Z" if at_end else ""))
