"""Stop strings in text that comes in pieces: no character of one ever leaves, however the pieces are cut."""

from __future__ import annotations

from collections.abc import Sequence


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
        self.found: str | None = None
        self.cut = 0  # characters from the stop on
        self._held = ""

    @property
    def held(self) -> int:
        """Characters that wait because they could be the beginning of a stop."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """The text that is safe to send; "" once a stop was found."""
        if not self.stops or self.found is not None:
            return "" if self.found is not None else text
        text = self._held + text
        ends = [(at + len(stop), -len(stop), stop) for stop in self.stops if (at := text.find(stop)) >= 0]
        if ends:
            end, size, self.found = min(ends)
            self._held, self.cut = "", len(text) - end - size
            return text[: end + size]
        keep = max(overlap(text, stop) for stop in self.stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What waited and turned out not to be a stop."""
        text, self._held = self._held, ""
        return text
