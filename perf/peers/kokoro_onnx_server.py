"""kokoro-onnx in its own environment: kokoro_onnx_server.py AT_ONCE THREADS MODEL VOCAB VOICES

The model is the int8 export, the one form of the ONNX weights that a package ships; espeak-ng makes the phonemes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
import onnxruntime
import serve
from kokoro_onnx import Kokoro

VOICE = "af_heart"


def main(at_once: int, threads: int, model: str, vocab: str, voices: str) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    made = Kokoro.from_session(session, voices, vocab_config=vocab)

    def speak(text: str) -> Iterator[bytes]:
        samples, _ = made.create(text, voice=VOICE, lang="en-us")
        yield (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()

    versions = {name: version(name) for name in ("kokoro-onnx", "onnxruntime", "espeakng-loader")}
    settings = {"dtype": "int8", "at_once": at_once, "threads": threads, "voice": VOICE, "g2p": "espeak-ng"}
    serve.serve(
        serve.Peer({"name": "kokoro-onnx", "versions": versions, "settings": settings}, speak=speak, at_once=at_once)
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
