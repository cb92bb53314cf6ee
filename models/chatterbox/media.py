"""A reference clip checked, long text in groups of sentences, sound as the API wants it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from models.chatterbox.config import SAMPLE_RATE
from models.chatterbox.loudness import levelled
from models.chatterbox.voice_prompt import at_16k, at_24k
from models.components.text.sentences import fitting, sentences
from serving.core.contract import Audio
from serving.errors import BadRequest

SHORTEST, LONGEST = 5.0, 60.0  # seconds of a reference clip; 5 to 30 are advised
LOWEST_RATE = 8000
GROUP, MOST_GROUPS = 400, 32  # characters of a group of sentences, groups of a request


def check_clip(audio: Audio, param: str = "ref_audio") -> None:
    """Raises `BadRequest` for a clip that no voice can be taken from."""
    if audio.rate < LOWEST_RATE:
        raise BadRequest(f'"{param}" is sampled at {audio.rate} Hz; at least {LOWEST_RATE} Hz are needed.', param=param)
    if not SHORTEST <= audio.seconds <= LONGEST:
        rule = f"give 5 to 30 seconds (at most {LONGEST:g})"
        raise BadRequest(f'"{param}" lasts {audio.seconds:.1f} seconds; {rule}.', param=param)


def heard(audio: Audio, *, level: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """A clip as the encoders hear it: float32 [T] at 24 kHz, and [T] at 16 kHz made from that.

    `level`: at Turbo's loudness.
    """
    high = at_24k(audio)
    high = levelled(high, SAMPLE_RATE) if level else high
    return high, at_16k(high)


def groups(text: str, measure: Callable[[str], int], most: int) -> list[str]:
    """Groups of sentences, up to 400 characters and `most` of `measure` each. Raises `BadRequest` over 32."""
    parts = [part for sentence in sentences(text) for part in fitting(sentence, GROUP)]
    found: list[str] = []
    for part in [piece for whole in parts for piece in fitting(whole, most, measure)]:
        joined = found[-1] + part if found else ""
        if found and len(joined) <= GROUP and measure(joined.strip()) <= most:
            found[-1] = joined
        else:
            found.append(part)
    found = [group.strip() for group in found if group.strip()]
    if len(found) > MOST_GROUPS:
        rule = f"at most {MOST_GROUPS} of up to {GROUP} characters are spoken in one request"
        raise BadRequest(f"The text makes {len(found)} groups of sentences; {rule}.", param="input")
    return found
