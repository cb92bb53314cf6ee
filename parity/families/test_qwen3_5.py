"""Qwen3.5 through the engine against transformers' own generation, and against itself bit for bit.

The checkpoint is tiny, random, and saved by the reference in the real layout; both sides compute in float32 on the CPU.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from unittest import mock

import pytest
import torch

from models.qwen3_5 import graph
from models.qwen3_5.tests import tiny
from models.qwen3_5.tests.running import answer, answered, empty, engine_of, user
from serving.errors import Cancelled
from serving.resources import StateSlots

KEY = "qwen3_5_0p8b"
NEW = 64
TEXTS = ["?", "The quick brown fox?", "Привет мир " * 3, "The quick brown fox jumps over the lazy dog. " * 4]
EIGHT = [user(text) for text in [*TEXTS, *(f"{text} 東京" for text in TEXTS)]]
pytestmark = pytest.mark.parametrize("key", [KEY])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("qwen3_5"))


@pytest.fixture(scope="module")
def expected():
    """transformers' greedy tokens of each of the eight, once they are made."""
    return []


@pytest.fixture
def port(folder):
    def load(numerics="invariant", page_size=1024, context=512, pages=None, capture="eager", **options):
        resources = {"kv": {"page_size": page_size} | ({"pages": pages} if pages else {})}
        model = {"context": context, **options}
        return tiny.port(folder, numerics=numerics, capture=capture, resources=resources, model=model)

    return load


def generated(reference, port, messages):
    """The reference's greedy tokens for the port's prompt."""
    ids = torch.tensor(port.tokenizer.prompt(messages, ()).ids.tolist())[None]
    options = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 0}
    return reference.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, ids.shape[1] :].tolist()


def bits(found):
    """Tokens and the exact log-probability of each."""
    return [[(one.id, one.logprob) for one in each.logprobs] for each in found]


@pytest.mark.parametrize(("numerics", "budget"), [("fast", 512), ("invariant", 7)])
def test_greedy_tokens_alone_and_eight_at_once(key, expected, port, numerics, budget):
    made = port(numerics, budget=budget)
    if not expected:
        reference = tiny.reference()
        expected += [generated(reference, made, messages) for messages in EIGHT]
    together = answered(made, EIGHT, numerics=numerics, max_tokens=NEW)
    assert [found.ids for found in together] == expected
    assert answered(made, EIGHT[:1], numerics=numerics, max_tokens=NEW)[0].ids == expected[0]


def test_bits_do_not_depend_on_the_batch(key, port):
    made = port()
    together = bits(answered(made, EIGHT, numerics="invariant", logprobs=True))
    alone = [bits(answered(made, [one], numerics="invariant", logprobs=True))[0] for one in EIGHT]
    assert together == alone


def test_bits_do_not_depend_on_padding_to_static_sizes(key, port):
    """Every step fits a size that was run before readiness, and what fills it changes nobody."""
    expected = bits(answered(port(), EIGHT[:5], numerics="invariant", logprobs=True))
    made = port(budget=64, capture="static")

    async def run():
        engine = engine_of(made, numerics="invariant", capture="static")
        await engine.start()
        try:
            asked = [answer(engine, one, f"chat-{i}", logprobs=True) for i, one in enumerate(EIGHT[:5])]
            return await asyncio.gather(*asked), engine.stats()["misses"]
        finally:
            await engine.stop()

    found, misses = asyncio.run(run())
    assert bits(found) == expected
    assert set(misses.values()) == {0}
    assert made.graph.nodes["decoder"].buckets[-1] == (8, 64)


def test_bits_do_not_depend_on_how_prompts_are_cut(key, port):
    """Every chunk size from 1 to the prompt, alone and while another row speaks."""
    made = port()
    one, other = user("quick fox"), user("?")
    length = len(made.tokenizer.prompt(one, ()).ids)
    expected = bits(answered(made, [one, other], numerics="invariant", logprobs=True, max_tokens=6))
    node = made.graph.nodes["decoder"]
    for size in range(1, length + 1):
        node.budget = float(size)
        found = bits(answered(made, [one], numerics="invariant", logprobs=True, max_tokens=6))
        assert found == expected[:1], size
        node.budget = float(size + 1)
        assert bits(answered(made, [one, other], numerics="invariant", logprobs=True, max_tokens=6)) == expected, size


def turns(count):
    """Conversations that grow from one another, each a turn longer."""
    messages = []
    for turn in range(count):
        messages = [*messages, {"role": "user", "content": f"The quick brown fox {turn}?"}]
        yield messages
        messages = [*messages, {"role": "assistant", "content": f"jumps over the lazy dog {turn}."}]


def test_bits_do_not_depend_on_what_was_kept_of_earlier_turns(key, port):
    kept, plain = port(page_size=8), port(page_size=512)
    reused = []
    for messages in turns(6):
        (found,) = answered(kept, [messages], numerics="invariant", logprobs=True)
        (expected,) = answered(plain, [messages], numerics="invariant", logprobs=True)
        assert bits([found]) == bits([expected])
        assert expected.info["cached_tokens"] == 0
        reused.append(found.info["cached_tokens"])
    assert reused[0] == 0
    assert all(more > less for less, more in pairwise(reused))


def test_sampled_tokens_follow_the_seed_alone(key, port):
    made = port()
    warm = {"temperature": 1.0, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.2, "logprobs": True}
    together = answered(made, EIGHT, numerics="invariant", **warm)
    assert bits(together)[:3] == [bits(answered(made, [one], numerics="invariant", **warm))[0] for one in EIGHT[:3]]
    assert len({tuple(found.ids) for found in together}) == len(EIGHT)


def test_rows_that_make_room_go_on_as_if_nothing_had_been(key, port):
    """Pages for three of the eight answers: rows leave, and are computed again when there is room."""
    plain, tight = port(page_size=512), port(page_size=8, pages=60, context=256)
    long = {"max_tokens": 80, "logprobs": True}
    expected = answered(plain, EIGHT, numerics="invariant", **long)

    async def run():
        engine = engine_of(tight, numerics="invariant", admission={"kv": "expected"})
        await engine.start()
        try:
            asked = [answer(engine, one, f"chat-{i}", **long) for i, one in enumerate(EIGHT)]
            return await asyncio.gather(*asked), engine.stats()
        finally:
            await engine.stop()

    with mock.patch.object(graph, "EXPECTED", 8):
        found, stats = asyncio.run(run())
    assert sum(stats["preemptions"].values()) > 0
    assert bits(found) == bits(expected)
    assert [one.text for one in found] == [one.text for one in expected]


async def leave(engine, messages, name):
    """Ask, read one output, go."""
    asked = asyncio.create_task(answer(engine, messages, name, max_tokens=200))
    await asyncio.sleep(0.3)
    engine.cancel(name)
    with pytest.raises(Cancelled):
        await asked


def after_a_cancelled_one(made):
    """The bits of a request whose slot a cancelled one had."""

    async def run():
        engine = engine_of(made, numerics="invariant")
        await engine.start()
        try:
            for i in range(3):
                await leave(engine, EIGHT[3], f"leaves-{i}")
            await empty(engine)
            return await answer(engine, EIGHT[1], "stays", logprobs=True)
        finally:
            await engine.stop()

    return bits([asyncio.run(run())])


def test_a_slot_is_zero_for_the_next_request(key, port):
    made = port()
    expected = bits(answered(made, EIGHT[1:2], numerics="invariant", logprobs=True))
    assert after_a_cancelled_one(made) == expected


def test_a_slot_that_leaks_its_state_is_caught(key, port):
    """The control: tables keep what the former owner left."""
    made = port()
    expected = bits(answered(made, EIGHT[1:2], numerics="invariant", logprobs=True))
    with mock.patch.object(StateSlots, "restore", return_value=None):
        assert after_a_cancelled_one(made) != expected
