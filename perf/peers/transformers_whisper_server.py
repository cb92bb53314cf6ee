"""transformers' Whisper, in process: python -m perf.peers.transformers_whisper_server AT_ONCE THREADS"""

from __future__ import annotations

import sys
from importlib.metadata import version

import torch

from perf.peers.serve import Peer, serve
from perf.peers.whisper_transformers import Transcriber


def main(at_once: int, threads: int) -> None:
    torch.set_num_threads(threads)
    transcribe = Transcriber()
    versions = {name: version(name) for name in ("transformers", "torch")}
    settings = {"dtype": "float32", "at_once": at_once, "threads": threads, "attention": "sdpa", "num_beams": 1}
    info = {"name": "transformers-whisper", "versions": versions, "settings": settings}
    serve(Peer(info, transcribe=lambda wav: transcribe([wav])[0], at_once=at_once))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
