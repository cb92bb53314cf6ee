"""Checkpoints in the real layout: every tensor accounted for, published sizes, and the loaded models over HTTP."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import numpy as np
import pytest
import soundfile
import torch

from models import registry
from models.chatterbox import weights
from models.chatterbox.checkpoint import EXACT, PADDED, bucket_of, ladder_of, load_port
from models.chatterbox.config import ENGLISH, MULTILINGUAL, TURBO, VARIANTS
from models.chatterbox.request import Deployment
from models.chatterbox.stream import WHOLE, StreamPlan
from models.chatterbox.t3 import T3
from models.chatterbox.tests import saved, tiny
from models.chatterbox.voice_encoder import VoiceEncoder
from models.weights.loading import on_meta
from serving.api import build_app
from serving.core.contract import LoadedModel, Options
from serving.core.engine import Engine
from serving.errors import SetupError
from serving.settings import ServerSettings

KEYS = tuple(VARIANTS)
every_key = pytest.mark.parametrize("key", KEYS)
SMALL = {"max_text_tokens": 40, "max_new_tokens_limit": 60, "prefill_tokens": 256}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {key: saved.checkpoint(tmp_path_factory.mktemp(key), key) for key in KEYS}


@every_key
def test_a_saved_t3_is_the_t3_that_was_saved(key):
    found = weights.load_t3(saved.t3(key))
    wanted = tiny.network(key).state_dict()
    assert found.config == tiny.CONFIGS[key]
    assert all(torch.equal(value, wanted[name]) for name, value in found.state_dict().items())


@every_key
@pytest.mark.parametrize("change", ["lacks", "has more", "lacks what nothing reads"])
def test_a_t3_with_a_tensor_too_few_or_too_many_is_refused(key, change):
    tensors = saved.t3(key)
    if change == "has more":
        tensors["tfmr.extra.weight"] = torch.zeros(1)
    else:
        del tensors["speech_head.weight" if change == "lacks" else "text_head.weight"]
    with pytest.raises(SetupError, match=r"tfmr\.extra|speech_head|text_head"):
        weights.load_t3(tensors)


def test_the_published_sizes():
    """Counts of the package's own modules, less the tables that nothing reads."""
    unused = {ENGLISH: (704 + 8) * 1024, MULTILINGUAL: (2454 + 8) * 1024}
    published = {ENGLISH: 532_405_248, MULTILINGUAL: 535_989_248}
    for config, total in published.items():
        made = on_meta(lambda config=config: T3(config))
        assert sum(p.numel() for p in made.parameters()) + unused[config] == total
    turbo = on_meta(lambda: T3(TURBO))
    gpt2_medium = 354_823_168 - 50257 * 1024 - 1024 * 1024  # its vocabulary and its positions
    outside = (50276 + 6563 + 8196) * 1024 + 256 * 1024 + 1024 + 6563 * 1025
    assert sum(p.numel() for p in turbo.parameters()) == gpt2_medium + outside
    assert sum(p.numel() for p in VoiceEncoder().parameters()) + 2 == 1_423_618


@every_key
def test_a_folder_that_lacks_a_file_names_it(key, tmp_path):
    with pytest.raises(SetupError, match="has no"):
        load_port(key, Options(weights=str(tmp_path)))


def test_models_that_are_not_pinned_need_a_folder():
    with pytest.raises(SetupError, match="weights"):
        load_port("chatterbox_turbo", Options())


@asynccontextmanager
async def serving(key, folder, numerics="fast", capture="eager", **options) -> AsyncIterator[httpx.AsyncClient]:
    model = {**SMALL, "watermark": False, **options}
    made = Options(rows=8, weights=str(folder), numerics=numerics, capture=capture, model=model)
    loaded = [LoadedModel(registry.card(key), made, load_port(key, made))]
    app = build_app(loaded, ServerSettings(), Engine(loaded))
    async with app.router.lifespan_context(app):
        await app.state.starting
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=120) as client:
            yield client


def body(key, **fields):
    return {
        "model": key,
        "input": "Hello there.",
        "response_format": "pcm",
        "seed": 3,
        "max_new_tokens": 12,
        "n_cfm_timesteps": 2,
        **fields,
    }


async def sound(client, *args, **fields):
    answer = await client.post("/v1/audio/speech", json=body(*args, **fields))
    assert answer.status_code == 200, answer.text
    return answer


@every_key
async def test_speech_over_http_alone_and_among_eight(key, folders):
    async with serving(key, folders[key]) as client:
        alone = [await sound(client, key, seed=seed) for seed in (3, 4)]
        assert len(alone[0].content) >= 2 * 960
        assert alone[0].content != alone[1].content
        crowd = await asyncio.gather(*(sound(client, key, seed=3 + i % 2, cfg_weight=i % 3 / 2) for i in range(8)))
        assert all(len(one.content) % 2 == 0 and len(one.content) for one in crowd)


@pytest.mark.parametrize(
    ("plan", "options", "bucket"),
    [
        (WHOLE, Options(), EXACT),
        (WHOLE, Options(profile="fast"), EXACT),
        (WHOLE, Options(device="cuda"), EXACT),
        (WHOLE, Options(device="cuda", profile="fast"), PADDED),
        (WHOLE, Options(device="cuda", profile="fast", numerics="invariant"), EXACT),
        (StreamPlan(), Options(), PADDED),
        (StreamPlan(), Options(numerics="invariant"), PADDED),
    ],
)
def test_what_must_have_the_packages_bits_is_not_padded(plan, options, bucket):
    assert bucket_of(plan, options) == bucket
    assert bucket == PADDED or not ladder_of(plan, options, Deployment())


STATIC, INVARIANT = Options(capture="static"), Options(numerics="invariant")


@pytest.mark.parametrize(
    ("plan", "options", "ladder"),
    [
        (StreamPlan(), Options(), ()),
        (StreamPlan(), STATIC, (288, 336, 384, 480)),
        (StreamPlan(), INVARIANT, (288, 336, 384, 480)),
        (StreamPlan(first=15), STATIC, (272, 320, 384, 480)),
        (StreamPlan(context=0), STATIC, (288, 352, 448, 640, 848, 1040, 1264)),
        (StreamPlan(first=4, chunk=5, growth=1, most=5), STATIC, (288,)),
        (WHOLE, STATIC, ()),
    ],
)
def test_solves_that_are_captured_have_few_lengths(plan, options, ladder):
    """Those of a stream's chunks behind ten seconds of the voice."""
    assert ladder_of(plan, options, Deployment()) == ladder


@every_key
async def test_what_is_not_streamed_is_spoken_whole(key, folders):
    """As by a server that speaks nothing but whole utterances, where a stream is spoken whole too."""
    cut = {"stream_first_chunk_tokens": 4, "stream_chunk_tokens": 5}
    async with serving(key, folders[key], **cut) as client:
        whole, streamed = [(await sound(client, key, stream=live)).content for live in (False, True)]
        events = await sound(client, key, stream_format="sse")
    async with serving(key, folders[key], stream_chunk_tokens=0) as client:
        assert [(await sound(client, key, stream=live)).content for live in (False, True)] == [whole, whole]
    assert len(streamed) == len(whole)
    assert streamed != whole
    parts = [json.loads(line[6:]) for line in events.text.splitlines() if line.startswith("data: {")]
    assert b"".join(base64.b64decode(part["audio"]) for part in parts if "audio" in part) == streamed


@every_key
@pytest.mark.parametrize("capture", ["eager", pytest.param("static", marks=pytest.mark.nightly)])
async def test_sound_does_not_depend_on_neighbours_where_that_is_promised(key, capture, folders):
    weights = [{"stream": i > 2, "cfg_weight": i % 2 / 2} for i in range(6)]
    fields = [{"seed": i, "input": "Hello. " * (1 + i % 3), **one} for i, one in enumerate(weights)]
    async with serving(key, folders[key], "invariant", stream_first_chunk_tokens=4, stream_chunk_tokens=5) as client:
        alone = [(await sound(client, key, **one)).content for one in fields]
    options = {"stream_first_chunk_tokens": 4, "stream_chunk_tokens": 5}
    async with serving(key, folders[key], "invariant", capture, **options) as client:
        crowd = await asyncio.gather(*(sound(client, key, **one) for one in fields))
    assert [one.content for one in crowd] == alone


def clip(seconds, rate=16_000):
    t = np.arange(int(seconds * rate)) / rate
    held = io.BytesIO()
    soundfile.write(
        held, (0.3 * np.sin(2 * np.pi * 180 * t) * np.sin(2 * np.pi * 3 * t)).astype(np.float32), rate, format="WAV"
    )
    return base64.b64encode(held.getvalue()).decode()


async def test_a_clip_gives_the_voice(folders):
    key = "chatterbox"
    async with serving(key, folders[key]) as client:
        default = await sound(client, key)
        bare, url = clip(5.5), f"data:audio/wav;base64,{clip(5.5)}"
        cloned = await sound(client, key, ref_audio=bare)
        assert cloned.content != default.content
        assert (await sound(client, key, ref_audio=url)).content == cloned.content


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"ref_audio": clip(2.0)}, "ref_audio"),
        ({"ref_audio": clip(61.0)}, "ref_audio"),
        ({"ref_audio": clip(6.0, 4000)}, "ref_audio"),
        ({"ref_audio": "/etc/passwd"}, "ref_audio"),
        ({"ref_audio": "http://127.0.0.1/a.wav"}, "ref_audio"),
        ({"ref_audio": clip(6.0), "voice": "default_"}, "ref_audio"),
        ({"voice": "../conds"}, "voice"),
        ({"exaggeration": 2.1}, "exaggeration"),
        ({"cfg_weight": -0.1}, "cfg_weight"),
        ({"temperature": 5.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 2.5}, "repetition_penalty"),
        ({"n_cfm_timesteps": 0}, "n_cfm_timesteps"),
        ({"max_new_tokens": 61}, "max_new_tokens"),
        ({"language_id": "en"}, "language_id"),
        ({"input": "word " * 30}, "input"),
    ],
)
async def test_what_is_refused_names_its_field(folders, fields, param):
    key = "chatterbox"
    async with serving(key, folders[key]) as client:
        answer = await client.post("/v1/audio/speech", json=body(key, **fields))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_turbo_names_what_it_ignores(folders):
    key = "chatterbox_turbo"
    async with serving(key, folders[key]) as client:
        plain = await sound(client, key)
        answer = await sound(client, key, cfg_weight=0.7, exaggeration=1.5, min_p=0.2)
    assert answer.headers["x-ignored-parameters"] == "cfg_weight, exaggeration, min_p"
    assert "x-ignored-parameters" not in plain.headers
    assert answer.content == plain.content


async def test_languages_over_http(folders):
    key = "chatterbox_multilingual"
    async with serving(key, folders[key], default_language="de") as client:
        default, german, english = [
            (await sound(client, key, **fields)).content
            for fields in ({}, {"language_id": "de"}, {"language_id": "en"})
        ]
        refused = await client.post("/v1/audio/speech", json=body(key, language_id="xx"))
    assert default == german != english
    assert refused.status_code == 400
    assert "language_id" in json.dumps(refused.json())
