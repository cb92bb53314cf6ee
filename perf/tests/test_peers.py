"""Peers: named with their settings, refused by name, and served by a route that gives them the very file."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from perf.launch import Launch, running
from perf.peers import PEERS, peer
from perf.peers.serve import form_file
from serving.errors import BadRequest

ECHO = (
    "import sys; sys.path.insert(0, sys.argv[1]); import serve;"
    "serve.serve(lambda wav: str(len(wav)), {'name': 'echo', 'settings': {'workers': 2}})"
)


def test_a_form_s_file_comes_out_byte_for_byte():
    data = bytes(range(256)) * 5 + b"\r\n--x\r\n\n"
    request = httpx.Request("POST", "http://x/", data={"model": "m"}, files={"file": ("a.wav", data, "audio/wav")})
    assert form_file(request.headers["content-type"], request.read()) == data
    without = httpx.Request("POST", "http://x/", files={"other": ("a.wav", data)})
    with pytest.raises(ValueError, match="no field named file"):
        form_file(without.headers["content-type"], without.read())


def test_the_route_answers_with_the_standard_library_alone(tmp_path: Path):
    folder = str(Path(__file__).parents[1] / "peers")
    launch = Launch([sys.executable, "-S", "-c", ECHO, folder], "echo", "echo")
    with running(launch, tmp_path) as live:
        url = live.target.url + "/v1/audio/transcriptions"
        answer = httpx.post(url, files={"file": ("a.wav", b"x" * 1234, "audio/wav")})
        assert answer.json() == {"text": "1234"}
        assert httpx.get(live.target.url + "/v1/server_info").json()["settings"] == {"workers": 2}


def test_unknown_peers_and_routes_are_refused():
    with pytest.raises(BadRequest, match='Did you mean "faster-whisper"'):
        peer("faster-wisper", "transcription")
    with pytest.raises(BadRequest, match="does not serve speech"):
        peer("openai-whisper", "speech")
    assert peer("openai-whisper", "transcription").command[1:] == ["-m", "perf.peers.openai_whisper_server"]


def test_every_peer_is_pinned():
    assert all("==" in pin for found in PEERS.values() for pin in found.pins)
