"""S3Gen's nodes in an engine: whole and streamed, alone and together, padded, marked, cut short."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from models.chatterbox.s3gen_nodes import FlowNode
from models.chatterbox.stream import TAIL, StreamPlan, joined
from models.chatterbox.tests.tiny_s3gen import SHORT, TURBO, WHOLE, Bench, network, utterance, voice
from parity.harness import compare

NET = network()
EACH = 480
UTTERANCES = [utterance(count, seed) for seed, count in enumerate((20, 3, 41, 20))]


async def spoken(one, plan=WHOLE, net=NET, **options):
    async with Bench(net, plan, **options) as bench:
        return await bench.speak(one)


@pytest.mark.parametrize("plan", [WHOLE, SHORT])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 9, 14, 30])
async def test_every_token_is_two_frames_of_sound(plan, count):
    assert len(await spoken(utterance(count, 1), plan)) == count * 2 * EACH


async def test_a_stream_comes_in_chunks_that_grow():
    async with Bench(NET, SHORT) as bench:
        sizes = [len(chunk) for chunk in await bench.chunks(utterance(60, 2))]
    ends = np.cumsum([6, 8, 16, 16]) * 2 - TAIL
    assert sizes == [int(n) * EACH for n in (*np.diff(ends, prepend=0), 120 - ends[-1])]


@pytest.mark.parametrize("plan", [WHOLE, SHORT])
async def test_together_is_as_alone(plan):
    alone = [await spoken(one, plan) for one in UTTERANCES]
    async with Bench(NET, plan, rows=4) as bench:
        together = await bench.together(UTTERANCES)
    for mine, theirs in zip(together, alone, strict=True):
        assert compare(torch.from_numpy(theirs), torch.from_numpy(mine), "max_abs", 2e-5)


async def test_together_is_as_alone_bit_for_bit_when_that_is_promised():
    options = {"bucket": 16, "numerics": "invariant"}
    async with Bench(network(), SHORT, rows=4, **options) as bench:
        alone = [await bench.speak(one) for one in UTTERANCES]
        together = await bench.together(UTTERANCES)
    for mine, theirs in zip(together, alone, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("plan", [WHOLE, SHORT])
async def test_padding_changes_next_to_nothing(plan):
    exact = torch.from_numpy(await spoken(UTTERANCES[0], plan))
    padded = torch.from_numpy(await spoken(UTTERANCES[0], plan, bucket=16))
    assert compare(exact, padded, "max_abs", 2e-5)


LADDER = (24, 40)  # prompts have 8 to 10 tokens, chunks up to 27 with what is around them
CAPTURED = {"bucket": 16, "ladder": LADDER}


async def all_at_once(plan=SHORT, **options):
    """The sounds of `UTTERANCES`, and how many steps of the flow no bucket held."""
    async with Bench(NET if options["numerics"] == "fast" else network(), plan, **CAPTURED, **options) as bench:
        node = bench.engine.models["s3gen_test"].nodes["s3gen"]
        return await bench.together(UTTERANCES), node.runner.misses


@pytest.mark.parametrize(("numerics", "most"), [("invariant", 0.0), ("fast", 2e-5)])
@pytest.mark.parametrize("rows", [1, 4])
async def test_static_is_eager(numerics, most, rows):
    """Bit for bit in `invariant`; in `fast` a step of other sinks and rows moves what rounding moves."""
    eager, _ = await all_at_once(numerics=numerics, rows=rows)
    static, misses = await all_at_once(numerics=numerics, rows=rows, capture="static")
    assert misses == 0
    for mine, theirs in zip(static, eager, strict=True):
        assert compare(torch.from_numpy(theirs), torch.from_numpy(mine), "max_abs", most)


def keeps_prompts(patch):
    """The mel of a prompt is left in its buffer behind the next row's, which may be shorter."""
    zero = torch.Tensor.zero_
    patch.setattr(torch.Tensor, "zero_", lambda self: self if self.shape[-1:] == (80,) else zero(self))


def keeps_a_row(patch):
    """A row of a buffer is filled the first time only."""
    fill, seen = FlowNode._fill, set()

    def once(self, w, i, row, chunk, tokens):
        key = w.tokens.data_ptr(), i
        if key not in seen:
            fill(self, w, i, row, chunk, tokens)
        seen.add(key)

    patch.setattr(FlowNode, "_fill", once)


@pytest.mark.parametrize("fault", [keeps_prompts, keeps_a_row])
async def test_a_stale_buffer_is_caught(fault, monkeypatch):
    options = {"numerics": "invariant", "rows": 1}
    eager, _ = await all_at_once(**options)
    fault(monkeypatch)
    static, _ = await all_at_once(**options, capture="static")
    assert any((mine != theirs).any() for mine, theirs in zip(static, eager, strict=True))


async def test_a_solve_past_the_ladder_is_counted_and_whole():
    long = utterance(41, 2, voice=voice(30, 2))
    async with Bench(NET, SHORT, **CAPTURED) as bench:
        eager = await bench.speak(long)
    async with Bench(NET, SHORT, **CAPTURED, capture="static") as bench:
        static, node = await bench.speak(long), bench.engine.models["s3gen_test"].nodes["s3gen"]
    assert node.runner.misses == 3  # all chunks but the first, which sees 39 tokens
    assert node.node.padded(57) == 64
    assert compare(torch.from_numpy(eager), torch.from_numpy(static), "max_abs", 2e-5)


def test_buckets_are_powers_of_two_of_rows_at_every_length():
    node = FlowNode(NET.flow, SHORT, 6, 16, 192, LADDER)
    assert node.buckets == tuple((n, n * length) for n in (1, 2, 4, 6) for length in LADDER)
    assert [node.padded(n) for n in (1, 24, 25, 40, 41, 65)] == [24, 24, 40, 40, 48, 80]


async def test_lengths_that_differ_share_one_padded_solve(monkeypatch):
    rows = []
    launch = FlowNode.launch

    def counted(self, b):
        rows.append(b.n)
        return launch(self, b)

    monkeypatch.setattr(FlowNode, "launch", counted)
    async with Bench(NET, WHOLE, rows=4, bucket=32) as bench:
        await bench.together([utterance(count, 3) for count in (20, 20, 19, 17)])
    assert max(rows) > 1


async def test_a_seed_gives_the_same_sound_and_another_another():
    first, again = await spoken(utterance(9, 4)), await spoken(utterance(9, 4))
    np.testing.assert_array_equal(first, again)
    one = utterance(9, 4)
    other = await spoken(type(one)(one.voice, 5, one.tokens, one.knobs))
    assert np.abs(first - other).max() > 1e-3


async def test_mean_flow_streams_too():
    assert len(await spoken(utterance(20, 1), SHORT, network(1, TURBO))) == 20 * 2 * EACH


async def test_steps_of_the_flow_are_the_requests():
    few, many = (SimpleNamespace(n_cfm_timesteps=n, watermark=False) for n in (1, 4))
    a, b = [await spoken(utterance(9, 1, knobs=knobs)) for knobs in (few, many)]
    assert np.abs(a - b).max() > 1e-5


async def test_a_mark_is_put_on_whom_it_is_asked_for():
    seen = []

    def mark(sound):
        seen.append(sound.shape)
        return sound * 0 + 0.5

    asked, not_asked = (SimpleNamespace(n_cfm_timesteps=1, watermark=on) for on in (True, False))
    async with Bench(NET, WHOLE, mark=mark) as bench:
        marked, plain = await bench.together([utterance(5, 1, knobs=knobs) for knobs in (asked, not_asked)])
    assert (marked == 0.5).all()
    assert not (plain == 0.5).any()
    assert seen == [(1, 5 * 2 * EACH)]


def test_a_cross_fade_of_a_sound_with_itself_is_that_sound():
    sound = torch.randn(3, 1000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(joined(sound, sound), sound)
    assert joined(sound, -sound)[:, 0].allclose(sound[:, 0], atol=1e-4)


def test_ramps_have_the_sizes_that_are_documented():
    assert StreamPlan().sizes == (35, 50, 100)
    assert StreamPlan().most == 200
    assert StreamPlan(first=15, growth=1).sizes == (15, 50)
