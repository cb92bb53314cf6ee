"""What a deployment's profile means for Whisper."""

from __future__ import annotations

from dataclasses import dataclass

from models.whisper.config import FRAMES
from serving.core.contract import Options


@dataclass(frozen=True, slots=True)
class Profile:
    """How windows are encoded and tokens chosen.

    `quick`: silence is not computed again, which moves features by rounding alone; logits are 8-bit products but for
    the likeliest tokens. `margin`: mel frames of silence
    behind the sound that are encoded; None: all up to 30 s, as the network was trained.
    """

    quick: bool = False
    margin: int | None = None

    def width(self, sound: int) -> int:
        """Mel frames to encode of a window with so many frames of sound, in steps of half a second."""
        if self.margin is None:
            return FRAMES
        return min(FRAMES, -(-(sound + self.margin) // 50) * 50)


PROFILES = {"exact": Profile(), "default": Profile(quick=True), "fast": Profile(quick=True, margin=400)}


def profile_of(options: Options) -> Profile:
    """On other devices than a CPU, and where a row's bits are promised, every profile is the plain encoder."""
    return PROFILES[options.profile] if options.device == "cpu" and options.numerics == "fast" else Profile()
