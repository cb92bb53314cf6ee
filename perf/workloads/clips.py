"""Clips: a folder of recordings with their texts beside them, or synthetic tones that need no files."""

from __future__ import annotations

import io
import json
from importlib import resources
from pathlib import Path

import numpy as np
import soundfile

from perf.workloads.base import Item, Workload
from serving.errors import SetupError

SUFFIXES = {".wav", ".flac", ".ogg"}


def clips(folder: Path, seed: int = 0) -> Workload:
    """Every recording in `folder`; NAME.txt, if it is there, says what NAME.wav says."""
    files = sorted(p for p in folder.glob("*") if p.suffix.lower() in SUFFIXES)
    if not files:
        raise SetupError(f"{folder} has no recordings ({', '.join(sorted(SUFFIXES))}).")
    return Workload(f"clips of {folder.name}", "transcription", [_item(path) for path in files], seed)


def recordings(seed: int = 0) -> Workload:
    """The project's own recordings: twelve English sentences in four voices, whose words are known."""
    folder = resources.files("oracles.speech")
    listed = json.loads(folder.joinpath("sentences.json").read_text())["clips"]
    with resources.as_file(folder.joinpath("clips")) as clip:
        items = [Item(Path(c["file"]).stem, c["text"], *read_clip(clip / c["file"])) for c in listed]
    return Workload("recorded sentences", "transcription", items, seed)


def tones(n: int = 16, seed: int = 0, seconds: float = 5.0, rate: int = 16_000) -> Workload:
    """`n` distinct clips of a gliding tone with noise: a load whose text nobody knows."""
    rng = np.random.default_rng(seed)
    t = np.arange(int(seconds * rate)) / rate
    items = []
    for i in range(n):
        glide = np.sin(2 * np.pi * (rng.uniform(120, 400) * t + rng.uniform(10, 60) * t**2))
        sound = 0.3 * glide + 0.02 * rng.standard_normal(len(t))
        items.append(Item(f"tone-{i:04d}", "", wav(sound.astype(np.float32), rate), seconds))
    return Workload(f"tones of {seconds:g} s", "transcription", items, seed)


def wav(samples: np.ndarray, rate: int) -> bytes:
    """A 16-bit WAV file. samples: float [T] or [T, channels]"""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def read_clip(path: Path) -> tuple[bytes, float]:
    """A recording as a WAV file, and its length in seconds."""
    samples, rate = soundfile.read(path, dtype="float32")
    data = path.read_bytes() if path.suffix.lower() == ".wav" else wav(samples, rate)
    return data, len(samples) / rate


def _item(path: Path) -> Item:
    said = path.with_suffix(".txt")
    return Item(path.stem, said.read_text().strip() if said.exists() else "", *read_clip(path))
