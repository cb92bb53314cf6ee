"""The toy through the engine against its naive oracle: alone, among others, in any order, cancelled in between."""

import asyncio
import itertools

import numpy as np
import pytest

from models.registry import cards, load
from models.toy.tests.naive import Naive
from serving.core.contract import Options, Packed, Task
from serving.core.engine import Engine, EngineSettings
from serving.errors import BadRequest, Busy, Cancelled, Overloaded, SetupError

TEXTS = ("hello there. this is it. fine", "a", "one two three four five. six", "no. yes. no. yes.")
numbers = itertools.count()


@pytest.fixture(scope="module")
def naive():
    return Naive()


def knobs(kind, **fields):
    return cards()["toy"].tasks[kind](**fields)


class Bench:
    """An engine over the toy, and what a client does with it."""

    def __init__(
        self, capture="eager", numerics="invariant", rows=8, model=None, resources=None, admission=None, **settings
    ):
        sizes = {"model": model or {}, "resources": resources or {}, "admission": admission or {}}
        options = Options(rows=rows, numerics=numerics, capture=capture, **sizes)
        self.engine = Engine([load("toy", options)], EngineSettings(**settings))

    async def __aenter__(self):
        await self.engine.start()
        return self

    async def __aexit__(self, *_):
        await self.engine.stop()

    async def submit(self, kind, inputs, seed=0, session=None, **fields):
        task = Task(kind, inputs, knobs(kind, **fields))
        return await self.engine.submit("toy", task, request_id=f"r{next(numbers)}", seed=seed, session=session)

    async def collect(self, port, kind, inputs, **fields):
        handle = await self.submit(kind, inputs, **fields)
        return [output.value async for output in handle if output.port == port]

    async def speak(self, text, **fields):
        return np.concatenate(await self.collect("audio", "speak", {"text": text}, **fields))

    async def idle(self):
        """Until the last step in flight is back; then nothing may be held."""
        model = self.engine.models["toy"]
        deadline = asyncio.get_running_loop().time() + 10
        while self.engine.stats()["requests"] or len(model.free) < model.rows:
            assert asyncio.get_running_loop().time() < deadline, self.engine.stats()
            await asyncio.sleep(0.005)
        kv = model.graph.resources["kv"]
        assert kv.free == kv.capacity
        assert all(not node.live and not node.groups for node in model.nodes.values())


async def test_alone_it_is_the_naive_model(naive):
    async with Bench() as bench:
        for text in TEXTS:
            np.testing.assert_allclose(await bench.speak(text), naive.audio(text, knobs("speak")), atol=2e-6)
        await bench.idle()


@pytest.mark.parametrize("capture", ["eager", "static"])
async def test_among_others_it_is_itself_bit_for_bit(capture):
    cases = [(text, {"cfg_weight": w, "max_new_tokens": n}) for text in TEXTS for w in (0.0, 1.5) for n in (1, 17)]
    async with Bench(capture) as bench:
        alone = [await bench.speak(text, **fields) for text, fields in cases]
        together = await asyncio.gather(*(bench.speak(text, **fields) for text, fields in cases))
        for a, b in zip(alone, together, strict=True):
            np.testing.assert_array_equal(a, b)
        await bench.idle()


@pytest.mark.parametrize("budget", [1, 3, 16, 128])
async def test_chunked_prefill_changes_nothing(budget):
    """Sampled, so that a draw that depended on the number of steps would show."""
    text = "a rather long sentence that is cut into parts"
    async with Bench() as whole, Bench(model={"budget": budget}) as cut:
        fields = {"temperature": 1.0, "seed": 7}
        np.testing.assert_array_equal(await whole.speak(text, **fields), await cut.speak(text, **fields))


async def test_a_seed_is_a_voice_and_two_seeds_are_two():
    async with Bench() as bench:
        fields = {"temperature": 1.5, "ignore_eos": True}
        once, again, other = [await bench.speak(TEXTS[0], seed=seed, **fields) for seed in (1, 1, 2)]
        np.testing.assert_array_equal(once, again)
        assert not np.array_equal(once, other)


async def test_pictures_at_different_steps_share_a_batch(naive):
    cases = [(seed, steps, size) for seed, steps in ((1, 3), (2, 6), (3, 9)) for size in ("8x8", "16x16")]
    async with Bench() as bench:
        found = await asyncio.gather(
            *(bench.collect("image", "image", {"text": "cat"}, seed=d, steps=n, size=z) for d, n, z in cases)
        )
        most = max(trace.rows for trace in bench.engine.traces)
        await bench.idle()
    assert most > 1
    for (seed, steps, size), (image,) in zip(cases, found, strict=True):
        expected = naive.picture("cat", knobs("image", steps=steps, size=size), seed)
        assert np.abs(image.astype(int) - expected).max() <= 1


async def test_a_client_stream_is_heard_in_frames_of_any_arrival(naive):
    samples = np.random.default_rng(0).standard_normal(41).astype(np.float32)
    async with Bench() as bench:
        handle = await bench.submit("generate", {})
        for start in range(0, 41, 7):
            await handle.append("audio_in", Packed.one(samples[start : start + 7]))
        await handle.finish("audio_in")
        tokens = [int(t) for output in [o async for o in handle] if output.port == "tokens" for t in output.value]
        assert tokens == naive.heard(samples)[0]
        await bench.idle()


async def test_a_session_remembers_and_is_one_request_at_a_time(naive):
    first, second = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    expected, state = naive.heard(first)
    async with Bench() as bench:

        async def listen(samples, session):
            handle = await bench.submit("generate", {}, session=session)
            await handle.append("audio_in", Packed.one(samples))
            await handle.finish("audio_in")
            return [int(t) for o in [o async for o in handle] if o.port == "tokens" for t in o.value]

        assert await listen(first, "s") == expected
        assert await listen(second, "other") == naive.heard(second)[0]
        assert await listen(second, "s") == naive.heard(second, state)[0]
        handle = await bench.submit("generate", {}, session="s")
        with pytest.raises(Busy, match='session "s" already runs'):
            await bench.submit("generate", {}, session="s")
        handle.cancel()
        await bench.idle()


async def test_a_client_stream_has_a_limit():
    async with Bench() as bench:
        handle = await bench.submit("generate", {})
        with pytest.raises(BadRequest, match="at most 4096"):
            await handle.append("audio_in", Packed.one(np.zeros(5000, np.float32)))
        handle.cancel()
        with pytest.raises(Cancelled):
            [o async for o in handle]
        await bench.idle()


async def test_cancelling_some_leaves_the_others_bytes_and_nothing_else():
    async with Bench() as bench:
        fields = {"ignore_eos": True, "max_new_tokens": 60}
        alone = [await bench.speak(text, **fields) for text in TEXTS]

        async def leave(text, after):
            async with await bench.submit("speak", {"text": text}, **fields) as handle:
                for _ in range(after):
                    await anext(handle, None)

        stay = asyncio.gather(*(bench.speak(text, **fields) for text in TEXTS))
        await asyncio.gather(*(leave(text, n) for text in TEXTS for n in (0, 1, 2, 5)))
        for a, b in zip(alone, await stay, strict=True):
            np.testing.assert_array_equal(a, b)
        await bench.idle()


def test_a_cap_that_a_pool_cannot_hold_refuses_to_start():
    with pytest.raises(SetupError, match=r"kv holds 130, and a request may need 64: .* 8 does not fit; at most 2 do"):
        Bench(resources={"kv": {"pages": 130}})


async def test_more_than_a_sequence_may_hold_is_refused_at_once():
    async with Bench() as bench:
        with pytest.raises(BadRequest, match="use at most 500"):
            await bench.speak("eleven char", max_new_tokens=256 * 2)
        await bench.idle()


async def test_a_full_queue_is_refused_at_once():
    async with Bench(rows=1, queue=2) as bench:
        running = [await bench.submit("speak", {"text": "a"}, ignore_eos=True, max_new_tokens=200) for _ in range(3)]
        with pytest.raises(Overloaded, match="2 requests are waiting already"):
            await bench.speak("a")
        for handle in running:
            handle.cancel()
        await bench.idle()


LONG = "a long sentence that many requests begin with, so that it is computed once"


@pytest.mark.parametrize("budget", [5, 128])
async def test_a_prompt_that_was_seen_is_not_computed_again_and_sounds_the_same(budget):
    """Bit for bit, with guidance and without, and whatever follows the common beginning."""
    cases = [
        (LONG + end, {"cfg_weight": w, "seed": 3, "temperature": 1.0}) for end in ("", " or twice") for w in (0.5, 0)
    ]
    async with Bench(model={"budget": budget}) as fresh, Bench(model={"budget": budget}) as bench:
        await bench.speak(LONG, seed=1)
        before = bench.engine.stats()["reused_tokens"]["toy"]
        for text, fields in cases:
            np.testing.assert_array_equal(await bench.speak(text, **fields), await fresh.speak(text, **fields))
        assert (before, bench.engine.stats()["reused_tokens"]["toy"]) == (0, 3 * 64 + 80)
        await bench.idle()


@pytest.mark.parametrize("preempt", ["offload", "recompute"])
async def test_rows_that_make_room_for_others_say_what_they_would_have_said(preempt):
    """Four want 88 pages of 66: somebody has to leave, and nobody says anything twice."""
    fields = {"max_new_tokens": 150, "ignore_eos": True, "temperature": 1.0, "sentence_chunking": False}
    small = {"resources": {"kv": {"pages": 66}}, "admission": {"kv": "expected"}, "model": {"preempt": preempt}}
    async with Bench() as roomy, Bench(**small) as bench:
        expected, found = [
            await asyncio.gather(*(one.speak(text, seed=n, **fields) for n, text in enumerate(TEXTS)))
            for one in (roomy, bench)
        ]
        for a, b in zip(expected, found, strict=True):
            np.testing.assert_array_equal(a, b)
        assert bench.engine.stats()["preemptions"]["toy"] > 0
        assert roomy.engine.stats()["preemptions"]["toy"] == 0
        await bench.idle()
