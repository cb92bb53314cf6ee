"""The port through the engine, with a tiny network, voices of noise, and letters for phonemes."""

import asyncio
import itertools

import numpy as np
import pytest
import torch

from models.kokoro import CARDS
from models.kokoro.graph import KokoroPort
from models.kokoro.modules import draw_noise, frame_counts
from models.kokoro.nodes import Bucketed
from models.kokoro.request import Deployment, SpeakKnobs
from models.kokoro.tests import tiny
from serving.core.contract import LoadedModel, Options, Task
from serving.core.engine import Engine
from serving.errors import BadRequest

NET = tiny.network()
TEXTS = ("Hello there. This is a test, a short one. And more.", "One", "A b c d e f g h i jk. " * 4, "What? Yes!")
numbers = itertools.count()


class Letters:
    """A G2P that speaks letters, in two languages."""

    def speakable(self, code):
        return code in "ab"

    def __call__(self, code, text):
        return text.lower()


class Tables:
    names = ("af_one", "bf_two", "jf_three")

    def table(self, spec):
        generator = torch.Generator().manual_seed(self.names.index(spec))
        return torch.randn(510, 16, generator=generator)

    def languages(self, spec):
        return [spec[0]]


def port(numerics="invariant", profile="exact", **deployment):
    small = {"text_buckets": (8, 16, 32, 64), "frame_buckets": (16, 48, 96, 192), "captured_length": 192}
    made = Deployment(**{**small, "first_chunk_target_phonemes": 16, "chunk_target_phonemes": 40, **deployment})
    return KokoroPort(tiny.network(), Tables(), Letters(), Options(numerics=numerics, profile=profile), made)


class Bench:
    def __init__(self, capture="eager", numerics="invariant", profile="exact", **deployment):
        options = Options(rows=8, numerics=numerics, capture=capture, profile=profile)
        self.port = port(numerics, profile, **deployment)
        self.engine = Engine([LoadedModel(CARDS[0], options, self.port)])

    async def __aenter__(self):
        await self.engine.start()
        return self

    async def __aexit__(self, *_):
        await self.engine.stop()

    async def outputs(self, text, seed=0, **knobs):
        task = Task("speak", {"text": text}, SpeakKnobs(**{"voice": "af_one", **knobs}))
        handle = await self.engine.submit("kokoro", task, request_id=f"k{next(numbers)}", seed=seed)
        return [output async for output in handle]

    async def speak(self, text, **knobs):
        return np.concatenate([o.value for o in await self.outputs(text, **knobs) if o.port == "audio"])


def plainly(text, seed=0, speed=1.0):
    """The same speech without engine, buckets or batches."""
    model, said = port(), []
    job = model.prepare(Task("speak", {"text": text}, SpeakKnobs(voice="af_one", speed=speed), seed))
    for i, phonemes in enumerate(job.phonemes):
        tokens = torch.tensor([[0, *(NET.config.vocab[p] for p in phonemes), 0]])
        style = Tables().table("af_one")[len(phonemes) - 1][None]
        encoded = NET.text_half(tokens, torch.tensor([tokens.shape[1]]), style, torch.tensor([speed]))
        at = torch.repeat_interleave(torch.arange(tokens.shape[1]), frame_counts(encoded.durations)[0])
        noise = draw_noise(torch.Generator().manual_seed(seed + i), len(at) * NET.config.samples_per_frame)
        count = torch.tensor([len(at)])
        said.append(NET.frame_half(encoded.prosody[:, at], encoded.text[:, at], count, style, noise[None])[0])
    return torch.cat(said).numpy()


def decibels(ours, theirs):
    return 10 * np.log10(np.square(theirs).sum() / max(np.square(ours - theirs).sum(), 1e-30))


async def test_it_says_what_the_network_says():
    async with Bench() as bench:
        for text in TEXTS:
            for speed in (1.0, 0.5):
                ours, theirs = await bench.speak(text, speed=speed), plainly(text, speed=speed)
                assert ours.shape == theirs.shape
                assert decibels(ours, theirs) > 20  # the phase of a source bin near zero is rounding noise


@pytest.mark.parametrize("profile", ["exact", "default"])
@pytest.mark.parametrize("capture", ["eager", "static"])
async def test_alone_and_among_eight_it_is_the_same_bit_for_bit(capture, profile):
    async with Bench(capture, profile=profile) as bench:
        alone = [await bench.speak(text, seed=5) for text in TEXTS]
        together = await asyncio.gather(*(bench.speak(text, seed=5) for text in (*TEXTS, *TEXTS)))
        for theirs, ours in zip([*alone, *alone], together, strict=True):
            np.testing.assert_array_equal(ours, theirs)


async def test_captured_is_eager_bit_for_bit():
    async with Bench("eager") as eager, Bench("static") as static:
        for text in TEXTS:
            np.testing.assert_array_equal(await static.speak(text), await eager.speak(text))
        assert not any(static.engine.stats()["misses"].values())


@pytest.mark.nightly
async def test_compiled_is_near_static_and_all_of_it_is_compiled():
    one = {"numerics": "fast", "text_buckets": (64,), "frame_buckets": (192,)}
    async with Bench("static", **one) as static, Bench("compiled", **one) as made:
        for text in TEXTS:
            ours, theirs = await made.speak(text), await static.speak(text)
            assert ours.shape == theirs.shape
            assert decibels(ours, theirs) > 20
        found = made.engine.stats()["compiled"]
    assert {name: (list(one["seconds"]), one["uncompiled"]) for name, one in found.items()} == {
        "kokoro.text_half": (["1x64"], 0),
        "kokoro.frame_half": (["1x192"], 0),
    }


async def test_rows_in_one_step_are_near_what_they_are_alone():
    async with Bench(numerics="fast", batch_rows=4) as bench:
        alone = [await bench.speak(text) for text in TEXTS]
        together = await asyncio.gather(*(bench.speak(text) for text in TEXTS * 2))
        assert max(trace.rows for trace in bench.engine.traces) > 1
        for theirs, ours in zip(alone * 2, together, strict=True):
            assert ours.shape == theirs.shape
            assert decibels(ours, theirs) > 20


async def test_the_default_profile_is_near_the_exact_one():
    async with Bench() as exact, Bench(profile="default") as default:
        for text in TEXTS:
            theirs, ours = await exact.speak(text), await default.speak(text)
            assert ours.shape == theirs.shape
            assert decibels(ours, theirs) > 60


async def test_a_seed_is_the_sound():
    async with Bench() as bench:
        one, same, other = [await bench.speak(TEXTS[0], seed=seed) for seed in (1, 1, 2)]
        np.testing.assert_array_equal(one, same)
        assert one.shape == other.shape
        assert not np.array_equal(one, other)


async def test_pieces_come_one_by_one_and_facts_last():
    async with Bench() as bench:
        outputs = await bench.outputs(TEXTS[0])
        sizes = [len(output.value) for output in outputs if output.port == "audio"]
        assert len(sizes) > 1
        info = outputs[-1].value
        assert info == {"voice": "af_one", "language": "a", "pieces": len(sizes), "phonemes": info["phonemes"]}


async def test_slower_speech_is_longer():
    async with Bench() as bench:
        slow, fast = await bench.speak(TEXTS[0], speed=0.5), await bench.speak(TEXTS[0], speed=4.0)
        assert len(slow) > len(fast)


async def test_phonemes_skip_the_text():
    async with Bench() as bench:
        np.testing.assert_array_equal(await bench.speak("", phonemes="what? yes!"), await bench.speak("What? Yes!"))


@pytest.mark.parametrize(
    ("text", "knobs", "param"),
    [
        ("", {}, "input"),
        (" \n ", {}, "input"),
        ("☺☺ …", {}, "input"),
        ("?!", {}, "input"),
        ("x", {"phonemes": ""}, "phonemes"),
        ("x", {"phonemes": "a#"}, "phonemes"),
        ("x", {"phonemes": "?!"}, "phonemes"),
    ],
)
def test_nothing_to_say_is_the_callers_mistake(text, knobs, param):
    task = Task("speak", {"text": text}, SpeakKnobs(voice="af_one", **knobs))
    with pytest.raises(BadRequest) as caught:
        port().prepare(task)
    assert caught.value.param == param


def test_voices_are_those_that_can_be_spoken():
    assert port().voices() == ["af_one", "bf_two"]


def test_a_language_may_be_fixed_or_asked_for():
    def language(made, **knobs):
        return made.prepare(Task("speak", {"text": "hi"}, SpeakKnobs(voice="bf_two", **knobs))).language

    assert language(port()) == "b"
    assert language(port(lang_code="a")) == "a"
    assert language(port(lang_code="a"), lang_code="b") == "b"


def test_lengths_past_the_ladder_have_buckets_too():
    node = Bucketed(NET, (16, 48), 2, captured=16)
    assert [node.bucket(n) for n in (1, 16, 17, 48, 49, 100)] == [16, 16, 48, 48, 96, 144]
    assert node.buckets == ((1, 16), (2, 32))


async def test_a_long_row_in_a_bucket_of_more_rows_is_whole():
    """A bucket of four short rows also holds the tokens of one long row."""
    text = "A long line of letters to say at one go. " * 2
    async with Bench() as bench:
        expected = await bench.speak(text)
    async with Bench("static", captured_length=48, batch_rows=4) as bench:
        found = await bench.speak(text)
    assert found.shape == expected.shape
    assert decibels(found, expected) > 20
