"""Voices: what a loaded model can speak by itself, and clips that clients upload for models that take a reference.

Uploaded voices are one folder each under `media.voices`; a name is an allow-list of characters, never a path. A
voice appears whole or not at all: it is written aside and renamed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import soundfile

from serving.core.contract import Audio
from serving.errors import BadRequest, NotFound, TooLarge, nearest
from serving.settings import Limits

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@runtime_checkable
class Voiced(Protocol):
    """A port with voices of its own."""

    def voices(self) -> Sequence[str]:
        """Names that this server can speak now."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """An uploaded clip and what it says."""

    name: str
    text: str
    seconds: float
    created: int


class VoiceStore:
    """Uploaded voices in a folder; without a folder there are none and uploads are refused."""

    def __init__(self, folder: Path | None, limits: Limits) -> None:
        self.folder, self.limits = folder, limits

    def list(self) -> list[Uploaded]:
        if self.folder is None or not self.folder.is_dir():
            return []
        found = (path / "voice.json" for path in sorted(self.folder.iterdir()) if NAME.fullmatch(path.name))
        return [Uploaded(**json.loads(path.read_text())) for path in found if path.is_file()]

    def add(self, name: str, audio: Audio, text: str) -> Uploaded:
        """Keep a clip under a new name."""
        folder = self._folder()
        target = folder / checked(name)
        if audio.seconds > self.limits.voice_seconds:
            limit = self.limits.voice_seconds
            raise TooLarge(f"A voice clip may last {limit:g} seconds, not {audio.seconds:.1f}.", param="audio_sample")
        if len(self.list()) >= self.limits.voices:
            raise BadRequest(f"There are {self.limits.voices} voices already; delete one.", param="name")
        voice = Uploaded(name, text, round(audio.seconds, 3), int(time.time()))
        scratch = Path(tempfile.mkdtemp(dir=folder, prefix="."))
        try:
            soundfile.write(scratch / "clip.wav", audio.samples.T, audio.rate, "FLOAT")
            (scratch / "voice.json").write_text(json.dumps(asdict(voice)))
            os.rename(scratch, target)  # fails if the name is taken, even at the same moment
        except OSError:
            raise BadRequest(f'There is a voice "{name}" already.', param="name", code="voice_exists") from None
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return voice

    def has(self, name: str) -> bool:
        """Whether there is an uploaded voice of this name."""
        return bool(self.folder and NAME.fullmatch(name) and (self.folder / name / "voice.json").is_file())

    def clip(self, name: str) -> tuple[Audio, str]:
        """The clip of an uploaded voice and its text."""
        folder = self._folder() / checked(name)
        samples, rate = soundfile.read(folder / "clip.wav", dtype="float32", always_2d=True)
        text = json.loads((folder / "voice.json").read_text())["text"]
        return Audio(np.ascontiguousarray(samples.T), rate), text

    def remove(self, name: str) -> None:
        target = self._folder() / checked(name)
        if not target.is_dir():
            raise NotFound(f'No uploaded voice "{name}".{nearest(name, [v.name for v in self.list()])}', param="name")
        grave = Path(tempfile.mkdtemp(dir=self._folder(), prefix="."))
        os.rename(target, grave / "voice")  # readers see it whole or not at all
        shutil.rmtree(grave, ignore_errors=True)

    def _folder(self) -> Path:
        if self.folder is None:
            raise BadRequest("This server keeps no uploaded voices (media.voices is not set).", code="voices_disabled")
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder


def checked(name: str) -> str:
    """The name, if it is one."""
    if not NAME.fullmatch(name):
        rule = "letters, digits, - and _, at most 64, the first a letter or digit"
        raise BadRequest(f'"name" must be {rule}; got {json.dumps(name[:80])}.', param="name")
    return name
