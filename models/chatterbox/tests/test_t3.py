"""T3 in the engine on tiny weights: bits that do not depend on neighbours, guidance on and off, pieces, limits."""

import asyncio
import itertools

import numpy as np
import pytest
import torch

from models import registry
from models.chatterbox.nodes import SILENCE
from models.chatterbox.tests import tiny
from serving.core.contract import Audio, LoadedModel, Options, Task
from serving.core.engine import Engine
from serving.errors import BadRequest

KEYS = tuple(tiny.CONFIGS)
every_key = pytest.mark.parametrize("key", KEYS)
numbers = itertools.count()
WARM = {"temperature": 0.9, "max_new_tokens": 14}


class Bench:
    """An engine over a tiny port. Sound comes back as the tokens that made it."""

    def __init__(self, key, capture="eager", numerics="invariant", net=None, rows=8, **deployment):
        options = Options(rows=rows, numerics=numerics, capture=capture)
        self.key, self.card = key, registry.card(key)
        self.port = tiny.port(key, options, net, **deployment)
        self.engine = Engine([LoadedModel(self.card, options, self.port)])

    async def __aenter__(self):
        await self.engine.start()
        return self

    async def __aexit__(self, *_):
        await self.engine.stop()

    def task(self, text, clip=None, **knobs):
        inputs = {"text": text} if clip is None else {"text": text, "voice": clip}
        return Task("speak", inputs, self.card.tasks["speak"](**knobs))

    async def outputs(self, text, seed=1, clip=None, **knobs):
        task = self.task(text, clip, **knobs)
        handle = await self.engine.submit(self.key, task, request_id=f"t{next(numbers)}", seed=seed)
        return [output async for output in handle]

    async def say(self, text, **knobs):
        said = [output.value for output in await self.outputs(text, **knobs) if output.port == "audio"]
        return np.concatenate(said)[:: tiny.SAMPLES].astype(int).tolist()

    def steps(self):
        return [trace for trace in self.engine.traces if trace.node == "t3"]


def work(key):
    """Requests of every sort: guided or not, warm or not, long and short, in three voices."""
    voices, texts = ("default", "second", "short"), ("Hello there.", "Yes", "A longer text, with more to say.")
    fields = [
        {"temperature": t, "voice": v, "max_new_tokens": n}
        for t, v, n in zip((0.0, 0.8, 1.2), voices, (9, 14, 20), strict=True)
    ]
    weights = ({"cfg_weight": 0.0}, {"cfg_weight": 0.5}, {"cfg_weight": 1.0})
    mixed = itertools.product(zip(texts, fields, strict=True), weights if key != "chatterbox_turbo" else ({},))
    return [(text, {**one, **weight}) for (text, one), weight in mixed][:8]


@every_key
@pytest.mark.parametrize("capture", ["eager", "static"])
async def test_a_request_among_eight_is_the_request_alone(key, capture):
    requests = work(key)
    async with Bench(key) as bench, Bench(key, capture) as crowd:
        alone = [await bench.say(text, **fields) for text, fields in requests]
        assert await asyncio.gather(*(crowd.say(text, **fields) for text, fields in requests)) == alone
        assert max(trace.rows for trace in crowd.steps()) > 1
    assert len({tuple(said) for said in alone}) > len(requests) // 2


@every_key
async def test_a_prompt_in_parts_is_the_prompt_at_once(key):
    """Budgets that cut between the two start tokens too."""
    texts = ["Hello there.", "What?"]
    async with Bench(key) as whole:
        expected = [await whole.say(text, **WARM) for text in texts]
    for budget in (16, 26, 34):
        async with Bench(key, prefill_tokens=budget) as parts:
            assert await asyncio.gather(*(parts.say(text, **WARM) for text in texts)) == expected


async def test_a_lane_that_leaks_is_caught(monkeypatch):
    """The control: an unconditional lane that hears its neighbour breaks the first test."""
    key = "chatterbox"
    node = type(tiny.port(key).graph.nodes["t3"])
    launch = node.launch

    def leaky(self, b):
        self.weight[b.slots] = self.weight[b.slots].max()
        return launch(self, b)

    requests = work(key)
    async with Bench(key) as bench:
        alone = [await bench.say(text, **fields) for text, fields in requests]
    monkeypatch.setattr(node, "launch", leaky)
    async with Bench(key) as crowd:
        assert await asyncio.gather(*(crowd.say(text, **fields) for text, fields in requests)) != alone


@every_key
async def test_a_seed_is_what_it_says_everywhere(key):
    async with Bench(key, rows=3) as one, Bench(key, rows=8) as other:
        first = await one.say("Hello", seed=3, **WARM)
        assert await other.say("Hello", seed=3, **WARM) == first
        assert await one.say("Hello", seed=4, **WARM) != first


async def test_a_seed_shared_by_all_is_caught(monkeypatch):
    key = "chatterbox"
    port = tiny.port(key)
    sampler = type(port.graph.resources["t3_sampler"])
    set_slot = sampler.set
    monkeypatch.setattr(
        sampler, "set", lambda self, slot, params, seed=0, **rest: set_slot(self, slot, params, 7, **rest)
    )
    async with Bench(key) as bench:
        assert await bench.say("Hello", seed=3, **WARM) == await bench.say("Hello", seed=4, **WARM)


@every_key
async def test_half_precision_speaks_too(key):
    async with Bench(key, numerics="fast", net=tiny.network(key).bfloat16()) as bench:
        first, again = [await bench.say("Hello there.", seed=2, **WARM) for _ in range(2)]
    assert first == again
    assert len(set(first)) > 1


async def test_without_guidance_a_request_has_one_lane():
    async with Bench("chatterbox") as bench:
        await bench.say("Hello", cfg_weight=0.0, max_new_tokens=6)
        assert {trace.units for trace in bench.steps()[1:]} == {1}
        before = len(bench.steps())
        await bench.say("Hello", cfg_weight=0.5, max_new_tokens=6)
        assert {trace.units for trace in bench.steps()[before + 1 :]} == {2}


async def test_guidance_and_emotion_change_what_is_said():
    async with Bench("chatterbox") as bench:
        said = [
            await bench.say("Hello", temperature=0.0, max_new_tokens=12, **fields)
            for fields in ({}, {"cfg_weight": 0.0}, {"voice": "second"})
        ]
        heard = []
        for exaggeration in (0.5, 0.0, 2.0):
            await bench.say("Hello", exaggeration=exaggeration, max_new_tokens=1)
            heard.append(bench.port.graph.nodes["t3"].prefixes.clone())
    assert len({tuple(one) for one in said}) == 3
    assert not torch.equal(heard[0], heard[1])
    assert not torch.equal(heard[0], heard[2])


async def test_the_end_token_ends_and_control_tokens_have_no_sound(monkeypatch):
    key = "chatterbox"
    net, calls = tiny.network(key), itertools.count()
    logits = net.logits

    def ending(hidden):
        found = logits(hidden)
        found[:, {4: 6561, 10: 6562}.get(next(calls) // 2, 0)] += 1e4 * (found.shape[0] > 0)
        return found

    monkeypatch.setattr(net, "logits", ending)
    async with Bench(key, net=net) as bench:
        said = await bench.say("Hello", temperature=0.0, max_new_tokens=30, repetition_penalty=1.0)
    assert len(said) == 9  # ten before the end, one of them a control token
    assert all(token < 6561 for token in said)


async def test_ignore_eos_speaks_on(monkeypatch):
    key = "chatterbox_turbo"
    net = tiny.network(key)
    net.speech_head.bias[6562] += 1e4
    async with Bench(key, net=net) as bench:
        assert await bench.say("Hello", **WARM) == [SILENCE] * 3
        assert await bench.say("Hello", ignore_eos=True, **WARM) == [SILENCE] * 3
        assert len(bench.steps()) >= 1 + WARM["max_new_tokens"]


@every_key
async def test_groups_of_sentences_come_in_order(key):
    text = "First things first. " * 3
    async with Bench(key) as bench:
        outputs = await bench.outputs(text, sentence_chunking=True, seed=9, **WARM)
        said = np.concatenate([o.value for o in outputs if o.port == "audio"])[:: tiny.SAMPLES].astype(int).tolist()
        (info,) = [o.value for o in outputs if o.port == "info"]
        assert info["pieces"] == 3
        parts = [await bench.say("First things first.", seed=9 + i, **WARM) for i in range(3)]
        assert said == [token for part in parts for token in part]


@every_key
async def test_a_client_that_leaves_frees_everything(key):
    async with Bench(key) as bench:
        task = bench.task("Hello there, and good night.", max_new_tokens=60, ignore_eos=True)
        async with await bench.engine.submit(key, task, request_id="leaves", seed=1) as handle:
            await anext(handle)
        for _ in range(500):
            if bench.engine.stats()["free_slots"][key] == 8:
                break
            await asyncio.sleep(0.01)
        assert not bench.port.graph.resources["t3_kv"]._held
        assert not bench.port.graph.resources["t3_sampler"]._owners


@pytest.mark.parametrize(
    ("text", "fields", "param"),
    [
        ("  ", {}, "input"),
        ("x" * 41, {}, "input"),
        ("Hello", {"max_new_tokens": 61}, "max_new_tokens"),
        ("Hello", {"voice": "nobody"}, "voice"),
        ("A sentence. " * 120, {"sentence_chunking": True}, "input"),
    ],
)
def test_what_cannot_be_said_names_its_field(text, fields, param):
    with pytest.raises(BadRequest) as found:
        tiny.port().prepare(Task("speak", {"text": text}, registry.card("chatterbox").tasks["speak"](**fields)))
    assert found.value.param == param


@pytest.mark.parametrize(("seconds", "rate"), [(4.9, 16_000), (60.1, 16_000), (6.0, 7999)])
def test_a_clip_that_no_voice_can_be_taken_from(seconds, rate):
    clip = Audio(np.ones((1, int(seconds * rate)), np.float32), rate)
    task = Task("speak", {"text": "Hello", "voice": clip}, registry.card("chatterbox").tasks["speak"]())
    with pytest.raises(BadRequest, match="ref_audio"):
        tiny.port().prepare(task)


async def test_a_clip_is_made_a_voice_once():
    clip = Audio(np.ones((1, 5 * 16_000), np.float32), 16_000)
    async with Bench("chatterbox") as bench:
        first, second = await asyncio.gather(*(bench.say("Hello", clip=clip, **WARM) for _ in range(2)))
        assert first == second
        assert first != await bench.say("Hello", **WARM)
        assert bench.port._clips.misses == 1


async def test_a_voice_of_another_model_is_refused():
    port = tiny.port("chatterbox")
    port._voices._held["default"] = tiny.voice(prompt=151)
    with pytest.raises(BadRequest, match="another model"):
        port.prepare(Task("speak", {"text": "Hello"}, registry.card("chatterbox").tasks["speak"]()))


def test_lanes_see_the_same_positions():
    """Without its text a lane is the positions of the text alone."""
    net = tiny.network("chatterbox")
    at = torch.arange(5)
    rows = net.text(torch.tensor([255, 5, 6, 7, 0]), at, torch.zeros(5, dtype=torch.bool))
    torch.testing.assert_close(rows, net.text_pos_emb(at), rtol=0, atol=0)
