"""What `toolkit bench` calls: which route, which targets, which load."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from perf.bench import _workloads, route_of, routes_of, run_bench
from perf.fake_server import FakeServer, Script
from perf.schema import Load, read_run
from serving.errors import BadRequest


@pytest.fixture
def url() -> Iterator[str]:
    """A scripted server in a thread of its own."""
    found: list[str] = []
    loop, up, down = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def main() -> None:
        async with FakeServer(lambda i: Script(first=0.01, gaps=(0.005,))).listening() as address:
            found.append(address)
            up.set()
            await down.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert up.wait(10)
    yield found[0]
    loop.call_soon_threadsafe(down.set)
    thread.join()
    loop.close()


def test_a_url_under_closed_and_open_loads(url: str, tmp_path: Path):
    closed = run_bench(url=url, route="speak", concurrency=(1, 2), requests=3, verify=True, out=tmp_path)
    assert [p.load for p in closed.points] == [Load("closed", 1), Load("closed", 2)]
    assert closed.config.models == {"server": "fake"}
    assert all(c.passed for p in closed.points for c in p.checks)
    assert sum(len(p.checks) for p in closed.points) >= 2
    assert read_run(tmp_path / "run.json") == closed
    resumed = run_bench(url=url, route="speak", concurrency=(1, 2, 3), requests=3, out=tmp_path, resume=True)
    assert resumed.points[:2] == closed.points
    assert [p.load.level for p in resumed.points] == [1, 2, 3]
    guessed = run_bench(url=url, concurrency=(1,), requests=2)  # the server says what its one model does
    assert (guessed.config.routes, guessed.config.models) == ({"server": "speech"}, {"server": "fake"})
    opened = run_bench(url=url, route="chat", rate=(50,), requests=3, model="m", ignore_eos=True)
    assert opened.config.body == {"ignore_eos": True}
    assert closed.config.body == {}
    assert opened.points[0].load == Load("poisson", 50)


def test_the_route_is_the_one_that_all_keys_serve():
    assert route_of(["whisper_tiny_en"], None) == "transcription"
    assert route_of(["whisper_tiny_en", "whisper"], None) == "transcription"
    assert route_of([], "speak") == "speech"
    assert routes_of(["whisper_tiny_en", "kokoro"], None) == {"whisper_tiny_en": "transcription", "kokoro": "speech"}
    with pytest.raises(BadRequest, match="more than one route"):
        route_of(["whisper_tiny_en", "kokoro"], None)
    with pytest.raises(BadRequest, match='Did you mean "speech"'):
        route_of([], "speach")
    with pytest.raises(BadRequest, match="Say which route"):
        route_of([], None)


def test_what_does_not_fit_is_refused_before_anything_starts(tmp_path: Path):
    with pytest.raises(BadRequest, match='Did you mean "openai-whisper"'):
        run_bench(url="http://127.0.0.1:1", model="x", route="transcribe", peers=("openai-whispr",))
    with pytest.raises(BadRequest, match="does not serve speech"):
        run_bench(url="http://127.0.0.1:1", model="x", route="speech", peers=("openai-whisper",))
    with pytest.raises(BadRequest, match="does not list its models"):
        run_bench(url="http://127.0.0.1:1", route="speech")
    with pytest.raises(BadRequest, match="needs a label"):
        run_bench(route="speech")


def test_a_named_workload_goes_to_its_route_and_files_to_none_of_several(tmp_path: Path):
    both = {"a": "speech", "b": "transcription", "c": "speech"}
    made = _workloads(both, "phrases:n=5", 0)
    assert {label: work.name for label, work in made.items()} == {
        "a": "phrases", "b": "recorded sentences", "c": "phrases",
    }  # fmt: skip
    assert made["a"] is made["c"]
    assert all(len(item.text.split()) <= 8 for item in made["a"].items)
    assert len(made["a"].items) == 5
    with pytest.raises(BadRequest, match="is for chat, not for speech or transcription"):
        _workloads(both, "prompts", 0)
    with pytest.raises(BadRequest, match="bench the keys apart"):
        _workloads(both, tmp_path, 0)
