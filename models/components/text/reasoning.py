"""Tells what a model thinks from what it says, in text that comes in pieces."""

from __future__ import annotations

from enum import Enum

from models.components.text.stops import overlap

TAGS = ("<think>", "</think>")


class _At(Enum):
    START, INSIDE, AFTER, OUTSIDE = range(4)


class Reasoning:
    """Splits text at the tags. `inside`: the prompt has opened the thought already.

    Only the first text of an answer can open a thought. Blank space beside the tags belongs to neither side.
    """

    def __init__(self, inside: bool = False, tags: tuple[str, str] = TAGS) -> None:
        self._open, self._close = tags
        self._at = _At.INSIDE if inside else _At.START
        self._begun = False
        self._held = ""

    @property
    def held(self) -> int:
        """Characters that wait: blank space or the beginning of a tag."""
        return len(self._held)

    @property
    def inside(self) -> bool:
        return self._at is _At.INSIDE

    @property
    def over(self) -> bool:
        """Whether everything from now on is said."""
        return self._at is _At.OUTSIDE

    def feed(self, text: str) -> tuple[str, str]:
        """(thought, said) that this text completes."""
        if self._at is _At.OUTSIDE:
            return "", text
        text, self._held = self._held + text, ""
        if self._at is _At.START:
            text = self._start(text)
        thought = ""
        if self._at is _At.INSIDE:
            thought, text = self._inside(text)
        if self._at is _At.AFTER:
            text = text.lstrip()
            self._at = _At.OUTSIDE if text else _At.AFTER
        return thought, text

    def finish(self) -> tuple[str, str]:
        """(thought, said) that waited."""
        text, self._held = self._held, ""
        return (text.rstrip(), "") if self.inside else ("", text)

    def _start(self, text: str) -> str:
        """What follows the opening tag, or the text itself where it begins without one."""
        begun = text.lstrip()
        if begun.startswith(self._open):
            self._at = _At.INSIDE
            return begun[len(self._open) :]
        if self._open.startswith(begun):
            self._held = text
            return ""
        self._at = _At.OUTSIDE
        return text

    def _inside(self, text: str) -> tuple[str, str]:
        if not self._begun:
            text = text.lstrip()
        end = text.find(self._close)
        if end >= 0:
            self._at = _At.AFTER
            return text[:end].rstrip(), text[end + len(self._close) :]
        thought = text[: len(text) - overlap(text, self._close)].rstrip()
        self._begun = self._begun or bool(thought)
        self._held = text[len(thought) :]
        return thought, ""
