"""openai-whisper on the tiny.en weights that the toolkit serves, one request at a time, as its users run it."""

from __future__ import annotations

import io
from importlib.metadata import version

import soundfile
import torch
import whisper
from scipy.signal import resample_poly

from models.weights.sources import fetch
from models.whisper import SOURCES
from models.whisper.weights import read
from perf.peers.serve import Peer, serve

KEY = "whisper_tiny_en"
RATE = 16_000


def build() -> whisper.Whisper:
    """The reference's model with the key's tensors."""
    folder = next(fetch(SOURCES[KEY]).rglob("config.json")).parent
    dims, tensors = read(folder)
    names = whisper.model.ModelDimensions.__dataclass_fields__
    model = whisper.Whisper(whisper.model.ModelDimensions(**{name: getattr(dims, name) for name in names}))
    model.load_state_dict(dict(tensors), strict=False)
    return model.eval()


def main() -> None:
    model = build()

    def transcribe(wav: bytes) -> str:
        samples, rate = soundfile.read(io.BytesIO(wav), dtype="float32")
        sound = samples if rate == RATE else resample_poly(samples, RATE, rate).astype("float32")
        with torch.inference_mode():
            said = model.transcribe(sound, fp16=False, language="en", temperature=0.0, without_timestamps=True)
        return str(said["text"]).strip()

    versions = {name: version(name) for name in ("openai-whisper", "torch")}
    settings = {"dtype": "float32", "at_once": 1, "threads": torch.get_num_threads(), "beam_size": None}
    serve(
        Peer({"name": "openai-whisper", "versions": versions, "settings": settings}, transcribe=transcribe, at_once=1)
    )


if __name__ == "__main__":
    main()
