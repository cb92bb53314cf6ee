"""Capture modes through the engine: compiled functions are the static ones, made before readiness and never again."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor

from models.registry import load
from serving import numerics
from serving.compiled import Compiled
from serving.core.contract import Card, Edge, LoadedModel, Node, Offer, Options, Packed, Piece, Settled, Task, Verdict
from serving.core.engine import Engine
from serving.core.streams import Each
from serving.core.tests.kit import Paper, outputs, submit
from serving.errors import SetupError
from serving.settings import Deployment

CLOSE = {"atol": 2e-6, "rtol": 1e-6}  # a filter goes on from sums that other instructions have made


def engine(capture="compiled", **options):
    return Engine([load("toy", Options(numerics="fast", capture=capture, **options))])


async def collect(served, port, kind, inputs, **fields):
    knobs = served.models["toy"].loaded.card.tasks[kind](**fields)
    handle = await served.submit("toy", Task(kind, inputs, knobs), request_id=f"{kind}{inputs}{fields}", seed=3)
    return [output.value async for output in handle if output.port == port]


async def answers(served):
    """What many requests at once give: sound, and tokens said to a stream of samples."""
    said = [f"{'no ' * n}yes." for n in range(1, 7)]
    fields = {"max_new_tokens": 23, "ignore_eos": True}
    sounds = [collect(served, "audio", "speak", {"text": text}, **fields) for text in said]
    samples = np.random.default_rng(0).standard_normal((1, 160)).astype(np.float32)
    heard = collect(served, "tokens", "generate", {"audio": SimpleNamespace(samples=samples)})
    *sounds, heard = await asyncio.gather(*sounds, heard)
    return [np.concatenate(sound) for sound in sounds], [int(token) for tokens in heard for token in tokens]


async def test_compiled_is_static_and_nothing_is_compiled_after_readiness(caplog):
    caplog.set_level(logging.INFO, "toolkit")
    fast, plain = engine(), engine("static")
    for one in (fast, plain):
        await one.start()
    try:
        before = counters["stats"]["unique_graphs"]
        found, want = await answers(fast), await answers(plain)
        made = counters["stats"]["unique_graphs"]
        stats = fast.stats()["compiled"]
    finally:
        for one in (fast, plain):
            await one.stop()
    assert made == before
    for sound, expected in zip(found[0], want[0], strict=True):
        np.testing.assert_allclose(sound, expected, **CLOSE)
    assert found[1] == want[1]
    assert plain.stats()["compiled"] == {}
    assert {name: list(one["seconds"]) for name, one in stats.items()} == {
        "toy.codec": ["4x32", "8x64"],
        "toy.listener": ["2x2", "8x8"],
    }
    assert all(seconds > 0 for one in stats.values() for seconds in one["seconds"].values())
    assert all(one["uncompiled"] == 0 for one in stats.values())
    assert "codec: bucket 8x64 compiled in" in caplog.text


class Doubler(Node):
    """One item a piece, the double of its knob, by `curve`."""

    name, buckets, compiles = "doubler", ((2, 2),), ("curve",)

    def __init__(self, curve):
        self.curve = curve

    def offer(self, row):
        return Offer(("double",))

    def stage(self, b):
        x = b.buffer("x", (b.size,), torch.float32)
        x[: b.n] = torch.tensor([row.knobs for row in b.rows])

    def launch(self, b):
        return {"y": self.curve(b.buffers["x"])}

    def settle(self, b, out):
        return Settled(np.full(b.n, Verdict.DONE), {"y": Packed(out["y"][: b.n], np.ones(b.n, np.int64))})


def double(x):
    return 2 * x


def reads_the_host(x):
    """What no compilation of a whole graph can hold."""
    return 2 * x if x.sum().item() < 1e9 else x


def serving(curve=double, rows=2, **options):
    """An engine over a node whose function is `curve`, not started."""
    model = Paper([Doubler(curve)], [Edge("doubler.y", "client.y", Each())], pieces=lambda job: [Piece("all", {}, 3.5)])
    made = Options(rows=rows, capture="compiled", **options)
    return Engine([LoadedModel(Card("paper", "paper", "", {}, "", ""), made, model)])


async def test_what_cannot_be_compiled_ends_start_up():
    one = serving(reads_the_host)
    with pytest.raises(SetupError, match=r"doubler\.curve cannot be compiled: .*allow_eager: true"):
        await one.start()
    assert one.state == "dead"


async def test_with_allow_eager_it_runs_uncompiled_and_says_so(caplog):
    one = serving(reads_the_host, allow_eager=True)
    await one.start()
    try:
        assert await outputs(await submit(one), "y") == [7.0]
    finally:
        await one.stop()
    assert "doubler.curve runs uncompiled" in caplog.text


async def test_an_error_of_the_function_itself_is_not_hidden():
    def broken(x):
        raise ZeroDivisionError("no such curve")

    one = serving(broken, allow_eager=True)
    with pytest.raises(ZeroDivisionError):
        await one.start()


def test_without_a_compiler_it_does_not_start_and_names_the_package():
    with inductor.patch({"cpp.cxx": ("no-such-compiler",)}), pytest.raises(SetupError, match=r"install g\+\+"):
        serving()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"numerics": "invariant"}, "cannot be invariant"), ({"device": "cuda"}, "for the CPU")],
)
def test_it_refuses_what_it_cannot_keep(options, message):
    with pytest.raises(SetupError, match=message):
        serving(**options)


def test_it_refuses_a_model_that_has_nothing_to_compile(monkeypatch):
    monkeypatch.setattr(Doubler, "compiles", ())
    with pytest.raises(SetupError, match="nothing to compile"):
        serving()


async def test_a_shape_of_no_bucket_runs_uncompiled_and_is_counted(monkeypatch):
    monkeypatch.setattr(Doubler, "buckets", ((1, 1), (2, 2)))
    one = serving()
    await one.start()
    try:
        assert await outputs(await submit(one), "y") == [7.0]
        assert one.stats()["compiled"]["paper.doubler"]["uncompiled"] == 0
        graphs = counters["stats"]["unique_graphs"]
        curve = one.models["paper"].nodes["doubler"].node.curve
        assert curve(torch.ones(3)).tolist() == [2.0] * 3
        assert one.stats()["compiled"]["paper.doubler"]["uncompiled"] == 1
        assert counters["stats"]["unique_graphs"] == graphs
    finally:
        await one.stop()


def test_each_shape_stride_and_dtype_is_compiled_once_for_any_number_of_threads():
    made = Compiled("double", double, allow_eager=False)
    square = torch.arange(6.0).view(2, 3)
    inputs = [square, square.t(), square.double(), square.view(6)]
    made.warming = True
    before = counters["stats"]["unique_graphs"]
    for x in inputs * 2:
        assert torch.equal(made(x), 2 * x)
    assert counters["stats"]["unique_graphs"] == before + len(inputs)
    made.warming = False
    with ThreadPoolExecutor(1) as lane:
        for threads in (1, 2, 3):
            lane.submit(torch.set_num_threads, threads).result()
            assert all(torch.equal(lane.submit(made, x).result(), 2 * x) for x in inputs)
    assert counters["stats"]["unique_graphs"] == before + len(inputs)
    assert made.misses == 0


def test_a_linear_with_packed_weights_is_compiled_from_its_plain_ones():
    net = torch.nn.Sequential(torch.nn.Linear(2048, 1024), torch.nn.GELU())
    numerics.prepare({"net": net}, "fast")
    x = torch.randn(4, 2048)
    made = Compiled("net", net, allow_eager=False)
    made.warming = True
    with torch.inference_mode():
        torch.testing.assert_close(made(x), net(x), atol=1e-5, rtol=1e-5)


def test_a_deployment_asks_for_it():
    options = Deployment(model="toy", capture="compiled", allow_eager=True).to_options()
    assert (options.capture, options.allow_eager) == ("compiled", True)
