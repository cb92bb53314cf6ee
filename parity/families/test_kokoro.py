"""Kokoro against kokoro's KModel, with the real weights: taps, both halves, then end to end.

Free waveforms cannot be held to decibels of equality: where the source's spectrum is near zero its phase is rounding
noise, and the vocoder reads the phase as a number. With the source of the reference's own pitch they are.
"""

import numpy as np
import pytest
import torch

from models import registry
from models.kokoro.layers import Span
from models.kokoro.modules import draw_noise, frame_counts
from parity.harness import compare
from parity.invariants.kit import numbers
from serving.core.contract import Task
from serving.core.engine import Engine

KEY = "kokoro"
CASES = ("heart", "michael_fast", "emma_slow")


@pytest.fixture(scope="module", params=CASES)
def name(request):
    return request.param


@pytest.fixture
def case(oracle, name):
    return oracle(KEY, name)


@pytest.fixture
def net(port):
    return port(KEY).model.net


class Run:
    """The port's own computation of a case, stage by stage, each on the stages before it or on the reference's."""

    def __init__(self, net, case, pad=0):
        self.net, self.case, self.pad = net, case, pad
        self.tokens, self.style = case["inputs/tokens"], case["inputs/style"]
        self.count = self.tokens.shape[1]
        tokens = torch.nn.functional.pad(self.tokens, (0, pad))
        speed = torch.tensor([case.config["speed"]])
        self.encoded = net.text_half(tokens, torch.tensor([self.count]), self.style, speed)
        self.frames = frame_counts(self.encoded.durations)[0, : self.count]
        self.at = torch.repeat_interleave(torch.arange(self.count), self.frames)
        self.lengths = torch.tensor([len(self.at)])
        self.noise = draw_noise(
            torch.Generator().manual_seed(case.config["seed"]), len(self.at) * net.config.samples_per_frame
        )[None]

    @property
    def prosody(self):
        return self.encoded.prosody[:, self.at]

    @property
    def text(self):
        return self.encoded.text[:, self.at]

    def spans(self):
        n = len(self.at)
        return Span.of(self.lengths, n), Span.of(2 * self.lengths, 2 * n)

    def curves(self):
        return self.net.predictor.curves(self.prosody, self.style[:, 128:], *self.spans())

    def trunk(self, f0, energy):
        return self.net.decoder.trunk(self.text.transpose(1, 2), f0, energy, self.style[:, :128], *self.spans())

    def excitation(self, f0):
        return self.net.decoder.generator.m_source(f0, self.noise)

    def audio_from(self, f0, trunk):
        """Audio [T] with the source of a given pitch."""
        generator = self.net.decoder.generator
        source = generator.source(f0, self.noise, 2 * self.lengths)
        return generator(trunk, self.style[:, :128], source, 2 * self.lengths)[0]

    def audio(self):
        return self.net.frame_half(self.prosody, self.text, self.lengths, self.style, self.noise)[0]


@pytest.fixture
def run(net, case):
    with torch.inference_mode():
        yield Run(net, case)


def test_kokoro_durations(run, case, check):
    check(case, "outputs/frames", run.frames)
    check(case, "taps/durations", run.encoded.durations)


def test_kokoro_durations_do_not_depend_on_padding(net, case, check):
    with torch.inference_mode():
        padded = Run(net, case, pad=17)
    check(case, "outputs/frames", padded.frames)


def test_kokoro_pitch_and_energy(run, case, check):
    f0, energy = run.curves()
    check(case, "taps/f0", f0)
    check(case, "taps/energy", energy)


def test_kokoro_source_is_the_references_bit_for_bit_from_its_pitch(run, case, check):
    check(case, "taps/source", run.excitation(case["taps/f0"]))


def test_kokoro_trunk(run, case, check):
    check(case, "taps/trunk", run.trunk(case["taps/f0"], case["taps/energy"]))


def test_kokoro_audio_with_the_references_pitch_in_the_source(run, case, check):
    trunk = run.trunk(*run.curves())
    check(case, "outputs/audio", run.audio_from(case["taps/f0"], trunk))


@pytest.fixture
def swift(port):
    """The generator of the default profile on a CPU."""
    return port(KEY, profile="default").model.graph.nodes["frame_half"].frames.generator


def test_kokoro_default_profile_audio_with_the_references_pitch_in_the_source(run, swift, case, check):
    trunk = run.trunk(*run.curves())
    source = run.net.decoder.generator.source(case["taps/f0"], run.noise, 2 * run.lengths)
    audio = swift(trunk[0].t().contiguous(), run.style[0, :128], source[0].t())
    check(case, "outputs/audio", audio, name="default/audio")


def test_kokoro_audio_free_running(run, case, check):
    check(case, "outputs/audio", run.audio(), name="free/audio")


FAULTS = {
    "another voice": lambda net, run: setattr(run, "style", run.style.roll(1)),
    "halves of the style swapped": lambda net, run: setattr(run, "style", run.style.roll(128)),
    "another seed": lambda net, run: setattr(run, "noise", run.noise.roll(1)),
    "a frame late": lambda net, run: setattr(run, "at", run.at.roll(1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_kokoro_audio_gate_catches(net, oracle, ledger, fault):
    case = oracle(KEY, "heart")
    with torch.inference_mode():
        run = Run(net, case)
        f0, energy = run.curves()
        FAULTS[fault](net, run)
        audio = run.audio_from(case["taps/f0"], run.trunk(f0, energy))
    assert not compare(case["outputs/audio"], audio, "snr", 95.0)


def test_kokoro_gives_the_references_names(net, oracle):
    """Every parameter of KModel is ours, in its shape, but for what it never uses."""
    named = oracle(KEY, "heart").values["names"]
    used = {n: s for n, s in named.items() if not n.startswith("bert.pooler.") and ".norm." not in n}
    assert {n: "x".join(map(str, p.shape)) for n, p in net.named_parameters()} == used


class Session:
    """An engine over the port."""

    def __init__(self, made):
        self.engine = Engine([made])

    async def __aenter__(self):
        await self.engine.start()
        return self

    async def __aexit__(self, *_):
        await self.engine.stop()

    async def speak(self, text="", seed=0, **fields):
        task = Task("speak", {"text": text}, registry.card(KEY).tasks["speak"](**fields))
        handle = await self.engine.submit(KEY, task, request_id=f"k{next(numbers)}", seed=seed)
        return np.concatenate([output.value async for output in handle if output.port == "audio"])


async def test_kokoro_served_is_the_reference(port, oracle, check):
    case = oracle(KEY, "heart")
    async with Session(port(KEY)) as session:
        fields = {"voice": "af_heart", "phonemes": "ɡˈʊd mˈɔɹnɪŋ.", "seed": case.config["seed"]}
        first, again = await session.speak(**fields), await session.speak(**fields)
    np.testing.assert_array_equal(first, again)
    check(case, "outputs/audio", torch.from_numpy(first), name="served/audio")
