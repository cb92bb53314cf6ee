"""Chatterbox's checkpoints and defaults are chatterbox-tts's: files, tensors at the published sizes, knobs."""

import pytest

from models import registry
from models.chatterbox import weights
from models.chatterbox.checkpoint import ENGLISH_HUB, S3GEN_FILES
from models.chatterbox.config import VARIANTS
from models.chatterbox.voice_prompt import LONGEST
from parity.families.test_chatterbox_s3gen import by_name
from serving.errors import SetupError

KEYS = tuple(VARIANTS)


@pytest.fixture(params=KEYS)
def key(request):
    return request.param


@pytest.fixture
def values(oracle, key):
    return oracle("chatterbox_layout", key, key=key).values


def read(key):
    """The files that the port reads of a folder; Turbo's tokenizer is the folder's own."""
    variant = VARIANTS[key]
    tokenizer = "." if key == "chatterbox_turbo" else variant.tokenizer_file
    return {variant.t3_file, variant.speaker_file, S3GEN_FILES[key], tokenizer, "conds.pt"}


def test_the_files_are_those_that_the_package_opens(key, values):
    assert read(key) == set(values["opened"])
    if key == "chatterbox":
        assert (ENGLISH_HUB.repo, set(ENGLISH_HUB.files)) == (values["repository"], set(values["files"]))
    assert values["repository"] in registry.card(key).source


def test_every_tensor_of_the_package_has_its_place_at_the_published_size(key, values):
    given = by_name(values["t3"])
    assert weights.load_t3(given).config == VARIANTS[key].t3
    weights.load_speaker(by_name(values["speaker"]))
    given["speech_head.weights"] = given.pop("speech_head.weight")
    with pytest.raises(SetupError, match="speech_head"):
        weights.load_t3(given)


def test_a_request_that_says_nothing_is_spoken_as_the_package_speaks(key, values):
    knobs = registry.card(key).tasks["speak"]()
    defaults = {name: value for name, value in values["defaults"].items() if name != "norm_loudness"}
    assert {name: getattr(knobs, name) for name in defaults} == defaults
    assert knobs.n_cfm_timesteps == (2 if values["meanflow"] else 10)
    assert VARIANTS[key].levelled == values["defaults"].get("norm_loudness", False)


def test_a_clip_is_heard_as_far_as_the_package_hears_it(key, values):
    variant = VARIANTS[key]
    found = variant.prompt_tokens, variant.prompt_seconds, LONGEST
    assert found == (values["prompt_tokens"], values["prompt_seconds"], values["heard_seconds"])
    assert sorted(registry.card(key).languages) == values["languages"]
