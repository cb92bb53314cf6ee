"""Peers: named with their settings, refused by name, and served by a route that gives them the very file."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import subprocess
import sys
import time
import wave
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest
import torch

from perf.arrivals import closed
from perf.bench import run_bench
from perf.fake_server import FakeServer
from perf.launch import Launch, running
from perf.metrics.base import content
from perf.peers import PEERS, environments, peer, serve
from perf.peers.environments import Environment
from perf.peers.search import best, lines, settings_of
from perf.peers.serve import Turns, form_file
from perf.tests.test_bench import QUICK, simulated
from serving.errors import BadRequest, SetupError

ECHO = (
    "import sys; sys.path.insert(0, sys.argv[1]); import serve;"
    "serve.serve(serve.Peer({'name': 'echo', 'settings': {'workers': 2}}, at_once=1,"
    " transcribe=lambda wav: str(len(wav)), speak=lambda text: iter([bytes(2), text.encode()]),"
    " chat=lambda body: iter(body['messages'][0]['content'])))"
)


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory):
    folder = str(Path(__file__).parents[1] / "peers")
    launch = Launch([sys.executable, "-S", "-c", ECHO, folder], "echo", "echo")
    with running(launch, tmp_path_factory.mktemp("logs")) as live:
        yield live.target.url


SLOW = (
    "import sys, time; sys.path.insert(0, sys.argv[1]); import serve; done = [];"
    "serve.serve(serve.Peer({'name': 'slow', 'done': done}, at_once=1,"
    " transcribe=lambda wav: (time.sleep(2.0), done.append(wav.decode()), 'said')[-1]))"
)


def test_nothing_is_made_for_a_client_that_has_left(tmp_path: Path):
    launch = Launch([sys.executable, "-S", "-c", SLOW, str(Path(serve.__file__).parent)], "slow", "slow")
    with running(launch, tmp_path) as live, ThreadPoolExecutor(4) as pool:
        path = live.target.url + "/v1/audio/transcriptions"

        def ask(name: str, patience: float) -> None:
            with contextlib.suppress(httpx.TimeoutException):
                httpx.post(path, files={"file": ("a.wav", name.encode(), "audio/wav")}, timeout=patience)

        first = pool.submit(ask, "first", 30)
        time.sleep(0.5)
        leaving = [pool.submit(ask, name, 0.2) for name in ("left", "gone")]
        last = pool.submit(ask, "last", 30)
        for one in (first, *leaving, last):
            one.result()
        assert httpx.get(live.target.url + "/v1/server_info").json()["done"] == ["first", "last"]


def test_turns_are_given_in_the_order_of_asking():
    turns, seen = Turns(1), []

    def work(name: int) -> None:
        for _ in range(3):
            with turns:
                time.sleep(0.05)
                seen.append(name)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert all(sorted(seen[i : i + 4]) == [0, 1, 2, 3] for i in (0, 4, 8))


def test_a_form_s_file_comes_out_byte_for_byte():
    data = bytes(range(256)) * 5 + b"\r\n--x\r\n\n"
    request = httpx.Request("POST", "http://x/", data={"model": "m"}, files={"file": ("a.wav", data, "audio/wav")})
    assert form_file(request.headers["content-type"], request.read()) == data
    without = httpx.Request("POST", "http://x/", files={"other": ("a.wav", data)})
    with pytest.raises(ValueError, match="no field named file"):
        form_file(without.headers["content-type"], without.read())


def test_a_transcription_answers_with_the_standard_library_alone(echo: str):
    answer = httpx.post(echo + "/v1/audio/transcriptions", files={"file": ("a.wav", b"x" * 1234, "audio/wav")})
    assert answer.json() == {"text": "1234"}
    assert httpx.get(echo + "/v1/server_info").json()["settings"] == {"workers": 2}


def test_speech_is_one_wav_of_the_pieces(echo: str):
    answer = httpx.post(echo + "/v1/audio/speech", json={"input": "abcd"})
    with wave.open(io.BytesIO(answer.content)) as found:
        assert (found.getframerate(), found.getnchannels(), found.getsampwidth()) == (24_000, 1, 2)
        assert found.readframes(3) == b"\0\0abcd"


def test_a_chat_is_events_with_running_counts_that_the_bench_reads(echo: str):
    run = run_bench(url=echo, model="echo", route="chat", requests=2, concurrency=(1,))
    (point,) = run.points
    assert all(r.outcome == "ok" and r.tokens == len(r.text or "") for r in point.measured)


def test_unknown_peers_and_routes_are_refused():
    with pytest.raises(BadRequest, match='Did you mean "faster-whisper"'):
        peer("faster-wisper", {"transcription"})
    with pytest.raises(BadRequest, match="does not serve speech"):
        peer("openai-whisper", {"speech"})
    with pytest.raises(BadRequest, match="transformers-chat:FOLDER"):
        peer("transformers-chat", {"chat"})
    with pytest.raises(BadRequest, match="kokoro alone"):
        peer("kokoro:/tmp", {"speech"})
    launch, route = peer("openai-whisper", {"transcription", "speech"}, "theirs")
    assert (launch.label, route) == ("theirs", "transcription")
    assert launch.command[1:] == ["-m", "perf.peers.openai_whisper_server"]


def test_every_peer_is_pinned():
    found = [p.environment for p in PEERS.values() if p.environment]
    assert found
    assert all("==" in pin for one in found for pin in (*one.pins, *one.no_deps))


def test_a_layered_environment_has_one_torch_and_is_told_apart_by_its_packages(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    python = Environment((), layered=True).python()
    code = "import importlib.util as u, sys; print(u.find_spec('torch').origin, sys.prefix)"
    torch, prefix = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert torch == importlib.util.find_spec("torch").origin
    assert Path(prefix).parent == tmp_path / "peers"
    assert not (Path(prefix) / "lib" / "torch").exists()


def test_an_environment_that_cannot_be_made_says_why_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(environments.sys, "executable", "/bin/false")
    with pytest.raises(SetupError, match=r"Cannot make the peer's environment \(some==1\)"):
        Environment(("some==1",)).python()
    assert [p.suffix for p in (tmp_path / "peers").iterdir()] == [".lock"]


def test_the_best_setting_is_the_one_with_the_highest_throughput():
    assert settings_of("kokoro") == ["kokoro", "kokoro-2x1"]
    assert "faster-whisper-float32" in settings_of("faster-whisper")
    run = simulated(FakeServer(lambda i: QUICK), loads=(closed(1), closed(4)), requests=4)
    points = [replace(p, label="slow", end=p.end + 1) for p in run.points]
    both = replace(run, points=[*run.points, *points])
    both.config.models, both.config.routes = {"slow": "m", "server": "m"}, {"slow": "speech", "server": "speech"}
    assert best(both) == "server"
    assert best(replace(run, points=[])) is None
    table = list(lines(both))
    assert table[0] == "| Setting | c=1 | c=4 |"
    assert table[-2:] == ["| best | server | server |", "\nbest of all: server"]


WORDS = [f"w{i}" for i in range(40)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory):
    """A tiny Llama whose greedy answers end early, with a tokenizer of words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("checkpoint")
    inner = Tokenizer(models.WordLevel({"<eos>": 0, **{word: i for i, word in enumerate(WORDS, 1)}}, unk_token="w0"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", unk_token="w0").save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    net = LlamaForCausalLM(LlamaConfig(vocab_size=41, **sizes, bos_token_id=0, eos_token_id=0, pad_token_id=0))
    with torch.no_grad():
        net.lm_head.weight[0] = -100 * net.model.norm.weight  # the end, wherever the hidden state sums up under 0
    net.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ["transformers-chat", "transformers-chat-2x1"])
def test_the_chat_peer_gives_what_generate_gives_token_by_token(name: str, checkpoint: Path, tmp_path: Path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, net = AutoTokenizer.from_pretrained(checkpoint), AutoModelForCausalLM.from_pretrained(checkpoint)
    ids = tokenizer("w3 w5 w7", return_tensors="pt")
    options = {"do_sample": False, "max_new_tokens": 9}
    expected = tokenizer.decode(net.generate(**ids, **options, min_new_tokens=9)[0, 3:], skip_special_tokens=True)
    work = tmp_path / "one.jsonl"
    work.write_text('{"text": "w3 w5 w7", "body": {"max_tokens": 9}}')
    with running(peer(f"{name}:{checkpoint}", {"chat"})[0], tmp_path) as live:
        bench = partial(run_bench, url=live.target.url, model="m", route="chat", requests=1, workload=work)
        set_length, free = bench(concurrency=(1,), ignore_eos=True), bench(concurrency=(1,))
    (full,), (short,) = (run.points[0].measured for run in (set_length, free))
    assert (full.text, full.tokens, len(content(full))) == (expected, 9, 9)
    assert (short.tokens or 0) < 9
    assert short.tokens == net.generate(**ids, **options).shape[1] - 3
