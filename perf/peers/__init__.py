"""Programs that people use today for the same job, each behind OpenAI's route and in a process of its own."""

from __future__ import annotations

import sys

from perf.launch import Launch
from serving.errors import BadRequest, nearest

# Name -> route -> module. A module's `main` prints its address and serves until it is stopped.
PEERS = {
    "openai-whisper": {"transcription": "perf.peers.openai_whisper"},
}


def peer(name: str, route: str) -> Launch:
    """The launch of a peer on a route; `BadRequest` names those that there are."""
    if name not in PEERS:
        raise BadRequest(f'No peer "{name}".{nearest(name, PEERS)}', param="peers")
    if route not in PEERS[name]:
        raise BadRequest(f"{name} does not serve {route}; it serves {', '.join(PEERS[name])}.", param="peers")
    return Launch([sys.executable, "-m", PEERS[name][route]], name, name)
