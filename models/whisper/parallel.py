"""Long sound in stretches that are transcribed at once: where to cut it, and how to run the stretches together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from models.whisper.config import FRAMES, FRAMES_PER_SECOND
from serving.core.contract import Emit, Packed, Piece, Steps

SEARCH = 10 * FRAMES_PER_SECOND  # the cut is in the last 10 s of a window
SMOOTH = FRAMES_PER_SECOND // 5  # a pause between words is longer than the gap in a plosive


def quiet_spans(mel: Callable[[int, int], Tensor], seek: int, stop: int) -> Iterator[tuple[int, int]]:
    """Mel frames [seek, stop) as spans of at most a window, cut at quietest moments; `mel(i, j)`: frames [i, j)."""
    while stop - seek > FRAMES:
        middle = seek + FRAMES - SEARCH + _quietest(mel(seek + FRAMES - SEARCH, seek + FRAMES).numpy())
        yield seek, middle
        seek = middle
    yield seek, stop


def _quietest(mel: np.ndarray) -> int:
    """The middle of the fifth of a second of log-mel [n_mels, n] with the least mean; of equal ones the last."""
    loudness = np.convolve(mel.mean(0), np.ones(SMOOTH) / SMOOTH, mode="valid").round(4)
    return len(loudness) - 1 - int(loudness[::-1].argmin()) + SMOOTH // 2


@dataclass(slots=True)
class _Stretch:
    """A stretch that has begun: the piece it waits for, and what it has to say."""

    steps: Steps
    waits: Piece | None = None
    told: list[Emit] = field(default_factory=list)

    def go(self, value: Packed | None) -> None:
        """On to the next piece, or to the end."""
        self.waits = None
        while self.waits is None:
            try:
                item = self.steps.send(value)
            except StopIteration:
                return
            value = None
            if isinstance(item, Emit):
                self.told.append(item)
            else:
                assert isinstance(item, Piece)
                self.waits = item


def together(stretches: Sequence[Steps], most: int) -> Steps:
    """Run generators in step, at most `most` at once; what they emit comes in their order."""
    waiting = iter([_Stretch(steps) for steps in stretches])
    begun: list[_Stretch] = []  # in order; the first is what the client hears next
    while True:
        while sum(one.waits is not None for one in begun) < most and (one := next(waiting, None)) is not None:
            one.go(None)
            begun.append(one)
        while begun and (begun[0].told or begun[0].waits is None):
            yield from begun[0].told
            begun[0].told = []
            if begun[0].waits is not None:
                break
            begun.pop(0)
        running = [one for one in begun if one.waits is not None]
        if not running:
            return
        found = yield tuple(one.waits for one in running if one.waits is not None)
        for one, result in zip(running, found, strict=True):
            one.go(result)
