"""LitServe around transformers' Whisper: python -m perf.peers.litserve_server WORKERS BATCH THREADS

LitServe gathers up to BATCH requests for `WAIT` seconds into one call of a worker. It reads the
annotations of the methods, which must be types here and not text.
"""

import socket
import sys
from importlib.metadata import version
from typing import Any

import litserve
import torch
from fastapi import Request

from perf.peers.whisper_transformers import Transcriber

WAIT = 0.02  # seconds that a batch is gathered for


class Whisper(litserve.LitAPI):
    """Transcription; `threads` of torch in each worker."""

    def __init__(self, threads: int, **options: Any) -> None:
        super().__init__(**options)
        self._threads = threads

    def setup(self, device: str) -> None:
        torch.set_num_threads(self._threads)
        self._transcribe = Transcriber()

    def decode_request(self, request: Request) -> bytes:
        return request["file"].file.read()  # the form, by now

    def predict(self, inputs: Any) -> Any:
        return self._transcribe(inputs) if isinstance(inputs, list) else self._transcribe([inputs])[0]

    def encode_response(self, output: str) -> dict[str, str]:
        return {"text": output}


def main(workers: int, batch: int, threads: int) -> None:
    versions = {name: version(name) for name in ("litserve", "transformers", "torch")}
    settings = {"workers": workers, "max_batch_size": batch, "batch_timeout": WAIT, "threads": threads}
    info = {"name": "litserve-whisper", "versions": versions, "settings": settings}
    api = Whisper(
        threads, max_batch_size=batch, batch_timeout=WAIT if batch > 1 else 0, api_path="/v1/audio/transcriptions"
    )
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=workers, timeout=False)
    server.app.get("/v1/server_info")(lambda: info)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    server.run(host="127.0.0.1", port=port, generate_client_file=False, num_api_servers=1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
