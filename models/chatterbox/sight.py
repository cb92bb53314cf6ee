"""Which tokens, or frames, of a padded solve are real."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from models.chatterbox.s3gen_config import FRAMES_PER_TOKEN


class Sight(NamedTuple):
    """Nothing is set where all of them are."""

    mask: Tensor | None = None  # [B, 1, T], 1 or 0
    counts: tuple[int, ...] | None = None  # on a CPU: rows are cut off there, which is faster than masking

    @classmethod
    def of(cls, real: Tensor, whole: bool) -> Sight:
        """From `real` [B, T]; `whole` says that all of it is True."""
        if whole:
            return cls()
        counts = tuple(real.sum(1).tolist()) if real.device.type == "cpu" else None
        return cls(real[:, None].float(), counts)

    def twice(self) -> Sight:
        """For a batch of the rows and the rows again."""
        if self.mask is None:
            return self
        return Sight(self.mask.repeat(2, 1, 1), None if self.counts is None else self.counts * 2)

    def frames(self) -> Sight:
        """Of tokens: over their frames."""
        if self.mask is None:
            return self
        mask = self.mask.repeat_interleave(FRAMES_PER_TOKEN, 2)
        return Sight(mask, None if self.counts is None else tuple(FRAMES_PER_TOKEN * n for n in self.counts))


ALL = Sight()
