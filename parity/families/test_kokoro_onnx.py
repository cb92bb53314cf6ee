"""Kokoro against the float32 twin of its ONNX export, run by ONNX Runtime: another implementation of the weights.

The export draws no noise, and leaves out the division of its inverse STFT, so its audio is ours times 1.5.
"""

import pytest
import torch

from models.kokoro.layers import Span
from models.kokoro.modules import frame_counts
from parity.harness import compare

KEY, ORACLE = "kokoro", "kokoro_onnx"
CASES = ("heart", "emma_slow")
GAIN = 1.5


@pytest.fixture(params=CASES)
def case(oracle, request):
    return oracle(ORACLE, request.param)


class Run:
    """The port on a case's inputs, with the export's source spectrum where it is asked for."""

    def __init__(self, net, case):
        self.net, self.style, tokens = net, case["inputs/style"], case["inputs/tokens"]
        speed = torch.tensor([case.config["speed"]])
        self.encoded = net.text_half(tokens, torch.tensor([tokens.shape[1]]), self.style, speed)
        self.frames = frame_counts(self.encoded.durations)
        self.at = torch.repeat_interleave(torch.arange(tokens.shape[1]), self.frames[0])
        self.lengths = torch.tensor([len(self.at)])
        self.prosody, self.text = (part[:, self.at] for part in (self.encoded.prosody, self.encoded.text))

    def curves(self):
        n = len(self.at)
        spans = Span.of(self.lengths, n), Span.of(2 * self.lengths, 2 * n)
        return self.net.predictor.curves(self.prosody, self.style[:, 128:], *spans)

    def audio(self, source):
        trunk, _ = self.net.trunk(self.prosody, self.text, self.lengths, self.style)
        return self.net.decoder.generator(trunk, self.style[:, :128], source, 2 * self.lengths)[0]


@pytest.fixture
def run(port, case):
    with torch.inference_mode():
        yield Run(port(KEY).model.net, case)


def test_kokoro_onnx_durations(run, case, check):
    check(case, "outputs/frames", run.frames, squeeze=True)
    check(case, "taps/durations", run.encoded.durations, squeeze=True)


def test_kokoro_onnx_pitch_and_energy(run, case, check):
    f0, energy = run.curves()
    check(case, "taps/f0", f0, squeeze=True)
    check(case, "taps/energy", energy, squeeze=True)


def test_kokoro_onnx_audio_with_its_source(run, case, check):
    check(case, "outputs/audio", GAIN * run.audio(case["taps/source"]), squeeze=True)


def test_kokoro_onnx_gate_catches_another_voice(port, oracle):
    case = oracle(ORACLE, "heart")
    with torch.inference_mode():
        run = Run(port(KEY).model.net, case)
        run.style = run.style.roll(1)
        audio = GAIN * run.audio(case["taps/source"])
    assert not compare(case["outputs/audio"], audio[:: case.entry("outputs/audio").stride], "snr", 90.0)
