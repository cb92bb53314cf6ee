"""The knobs' bounds, key by key: both ends are taken, what is past them is refused."""

import json

import pytest
from pydantic import ValidationError

from models import registry
from models.chatterbox.config import VARIANTS
from models.chatterbox.graph import ChatterboxPort
from models.chatterbox.media import GROUP, LONGEST, LOWEST_RATE, MOST_GROUPS, SHORTEST
from models.chatterbox.tokenizer import Turbo

BOUNDS = {
    "exaggeration": (0.0, 2.0),
    "cfg_weight": (0.0, 1.0),
    "temperature": (0.0, 5.0),
    "min_p": (0.0, 1.0),
    "top_k": (0, 1 << 20),
    "n_cfm_timesteps": (1, 100),
}
UP_TO = {"top_p": 1.0, "repetition_penalty": 2.0}  # above 0


def knobs(key, **fields):
    return registry.card(key).tasks["speak"](**fields)


@pytest.mark.parametrize("key", VARIANTS)
def test_both_ends_are_taken_and_no_more(key):
    ends = [(name, low, low - 1) for name, (low, _) in BOUNDS.items()]
    ends += [(name, high, high + 1) for name, high in [*((n, high) for n, (_, high) in BOUNDS.items()), *UP_TO.items()]]
    for name, end, past in ends:
        assert getattr(knobs(key, **{name: end}), name) == end
        with pytest.raises(ValidationError, match=name):
            knobs(key, **{name: past})
    for name in UP_TO:
        with pytest.raises(ValidationError, match=name):
            knobs(key, **{name: 0})


def test_a_language_may_be_in_capitals():
    assert knobs("chatterbox_multilingual", language_id="DE").language_id == "de"
    for wrong in ("xx", 3):
        with pytest.raises(ValidationError, match="language_id"):
            knobs("chatterbox_multilingual", language_id=wrong)


def test_what_is_fixed_is_what_is_documented():
    assert {key: variant.first_chunk for key, variant in VARIANTS.items()} == {
        "chatterbox": 35,
        "chatterbox_multilingual": 15,
        "chatterbox_turbo": 15,
    }
    assert (SHORTEST, LONGEST, LOWEST_RATE, GROUP, MOST_GROUPS) == (5.0, 60.0, 8000, 400, 32)
    assert ChatterboxPort.in_flight(None, None) == 2


def test_turbos_tokenizer_is_read_from_the_files_of_its_repository(tmp_path):
    """GPT-2's vocabulary and merges, which no model's configuration stands beside."""
    letters = [*map(chr, range(33, 127)), "Ġ", "He", "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(letters)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nH e\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    found = Turbo(tmp_path)("He is", "en").tolist()
    assert found == [letters.index(token) for token in ("He", "Ġ", "i", "s", ".")]
