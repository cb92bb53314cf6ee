"""A short English recording with its exact text: the speech that tests, the demo and the benchmark listen to.

`record.py` makes the files with the Kokoro-82M weights; `sentences.json` says what is in them. Both travel in
the wheel, so that nothing has to be downloaded to try a speech-to-text model.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Clip:
    """One sentence as it was spoken: a mono FLAC file at `rate` Hz."""

    path: Path
    text: str
    seconds: float
    voice: str
    rate: int
    sha256: str

    def intact(self) -> bool:
        """Whether the file is, byte for byte, the one that was recorded."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest() == self.sha256


@cache
def clips() -> tuple[Clip, ...]:
    """All clips in the order of the text they make together."""
    listing = json.loads((HERE / "sentences.json").read_text(encoding="utf-8"))
    return tuple(
        Clip(HERE / "clips" / c["file"], c["text"], c["seconds"], c["voice"], listing["rate"], c["sha256"])
        for c in listing["clips"]
    )
