"""Whisper's oracle against openai-whisper itself: it is reproducible, and its gates catch what ports get wrong.

No port is involved. What passes here is the yardstick of `test_whisper.py`: the same taps, the same bounds, the same
planted faults.
"""

import pytest
import torch

from parity.harness import compare, faults
from parity.harness.bisect import Bisector
from parity.harness.tokens import compare_tokens

whisper = pytest.importorskip("whisper", reason="the extra `reference`")
KEY = "reference_whisper"
SIDES = ["encoder", "decoder"]
# The reference hands `is_causal` to torch's attention and reads its mask only to see that there is one.
INVISIBLE = {"encoder": {}, "decoder": {("wrong mask", ""): "the values of the mask are never read"}}


@pytest.fixture
def reference(oracle):
    """The case and the reference network with its weights."""
    case = oracle("whisper", "tiny_en", key=KEY)
    model = whisper.model.Whisper(whisper.model.ModelDimensions(**case.config["dims"])).eval()
    model.load_state_dict(case.recipe().build())
    return case, model.requires_grad_(False)


def runner(case, model, side):
    """How one side of the network is run on the case's inputs."""
    if side == "encoder":
        return model.encoder, lambda: model.encoder(case["mel_0"][None])
    return model.decoder, lambda: model.decoder(case["ids"], case["features"])


@pytest.mark.parametrize("side", SIDES)
def test_reference_whisper_gives_its_taps_again(reference, check, side):
    case, model = reference
    module, run = runner(case, model, side)
    check.network(case, module, run, prefix=side)
    check(case, "features" if side == "encoder" else "logits", run())


@pytest.mark.parametrize("side", SIDES)
def test_reference_whisper_catches_every_planted_fault(reference, check, side):
    case, model = reference
    module, run = runner(case, model, side)
    clean = run()
    check.controls(module, run, lambda: compare(clean, run(), "max_abs"), invisible=INVISIBLE[side])


@pytest.mark.parametrize("side", SIDES)
def test_reference_whisper_bisects_every_planted_fault_to_its_layer(reference, side):
    case, model = reference
    module, run = runner(case, model, side)
    # An epsilon of 1e-4 for 1e-5 moves less than another instruction set does.
    bound, below = (1e-4, {"wrong epsilon"}) if case.elsewhere() else (0.0, set())
    bisector = Bisector(case, module, prefix=side, by=lambda _, a, b: compare(a, b, "max_abs", bound))
    assert bisector.run(run)
    wrong = {}
    for planted in faults.plantable(module, run):
        with planted.plant():
            found = bisector.run(run)
        named = found.first.path if found.first else "nothing"
        told = named == f"{side}.{planted.path}" or planted.fault in below
        if planted.path and not told:  # the roots themselves have no tap
            wrong[str(planted)] = named
    assert not wrong


def test_reference_whisper_tokens_come_again(reference):
    case, model = reference
    options = whisper.DecodingOptions(language="en", without_timestamps=True, fp16=False)
    for index, expected in enumerate(case.values["tokens"]):
        said = whisper.decode(model, case[f"mel_{index}"], options).tokens
        forced = torch.tensor([[*case.values["prompt"], *expected]])
        logits = model.decoder(forced, model.encoder(case[f"mel_{index}"][None]))[0, 1:-1]
        assert compare_tokens(expected, said, logits, noise=case.values["noise"])
