"""The port's network against openai-whisper's recorded taps, layer by layer, on tiny random weights."""

from __future__ import annotations

import pytest
import torch

from models.components.audio.mel import log_mel
from models.weights.loading import load_strict, on_meta
from models.whisper import config
from models.whisper.modules import Whisper
from parity.families.whisper_naive import naive_decoder

KEY = "whisper_tiny_en"
SIDES = ["encoder", "decoder"]


@pytest.fixture
def recorded(oracle):
    """The case and the port's network with its weights."""
    case = oracle("whisper", "tiny_en", key=KEY)
    dims = config.from_openai(case.config["dims"])
    return case, load_strict(on_meta(lambda: Whisper(dims)), case.recipe().build())


def runner(case, net, side):
    """How one side of the network is run on the case's inputs."""
    if side == "encoder":
        return net.encoder, lambda: net.encoder(case["mel_0"][None])
    return net.decoder, lambda: naive_decoder(net.decoder, case["ids"][0], case["features"])


@pytest.mark.parametrize("side", SIDES, ids=[f"{KEY}-{side}" for side in SIDES])
def test_layers(recorded, check, side):
    case, net = recorded
    module, run = runner(case, net, side)
    check.network(case, module, run, prefix=side, squeeze=True)


@pytest.mark.parametrize("side", SIDES, ids=[f"{KEY}-{side}" for side in SIDES])
def test_the_layer_gate_catches_every_fault(recorded, check, side):
    case, net = recorded
    module, run = runner(case, net, side)
    tap = "features" if side == "encoder" else "logits"
    gate = run if side == "encoder" else lambda: net.decoder.head(run())[None]
    check.controls(module, run, lambda: check.measure(case, tap, gate()))


@pytest.mark.parametrize("index", [0, 1, 2], ids=lambda i: f"{KEY}-clip{i}")
def test_features(recorded, check, index):
    case, _ = recorded
    check(case, f"mel_{index}", log_mel(case[f"audio_{index}"].float() / 32768.0, 80))


@pytest.mark.parametrize("key", [KEY])
def test_features_of_the_encoder_and_logits(recorded, check, key):
    case, net = recorded
    check(case, "features", net.encoder(case["mel_0"][None]))
    hidden = naive_decoder(net.decoder, case["ids"][0], case["features"])
    check(case, "logits", net.decoder.head(hidden)[None])
    assert torch.equal(net.decoder.head(hidden).argmax(-1), case["argmax"][0])
