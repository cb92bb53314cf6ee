"""Chatterbox's streamed sound against its whole: as a listener compares them, and exactly where it must be exact."""

import numpy as np
import pytest
import torch
from torch import nn

from models.chatterbox import s3gen_nodes, stream
from models.chatterbox.s3gen_noise import source_field
from models.chatterbox.stream import TAIL, StreamPlan
from models.chatterbox.tests import tiny_s3gen as tiny
from parity.harness import compare
from parity.harness.audio import join_excess, log_mel_correlation

KEY = "chatterbox"
CORRELATION = 0.98
UTTERANCE = tiny.utterance(130, 2)
AT_ONCE = StreamPlan(first=1000, chunk=1000, most=1000)  # whole, from the noise of a stream
PLANS = {
    "chatterbox": StreamPlan(),
    "chatterbox_turbo": StreamPlan(first=15),
    "chatterbox_multilingual": StreamPlan(first=15, context=0),
}


@pytest.fixture(autouse=True)
def known(parity_record, request):
    parity_record.keys.append(
        request.node.callspec.params.get("key", KEY) if hasattr(request.node, "callspec") else KEY
    )


@pytest.fixture
def frames(monkeypatch):
    """Every mel frame that the flow gives, chunk by chunk."""
    found, settle = [], s3gen_nodes.FlowNode.settle

    def kept(self, b, out):
        settled = settle(self, b, out)
        found.append(settled.emits["mel"].values)
        return settled

    monkeypatch.setattr(s3gen_nodes.FlowNode, "settle", kept)
    return found


async def heard(net, plan, utterance=UTTERANCE):
    async with tiny.Bench(net, plan) as bench:
        return await bench.chunks(utterance)


def joins(chunks):
    return np.cumsum([len(chunk) for chunk in chunks])[:-1].tolist()


def sound(chunks):
    return torch.from_numpy(np.concatenate(chunks))


@pytest.fixture(scope="module")
def calm():
    """A network whose pitch hardly depends on its mel: else the phase of its sines would drift with any rounding."""
    return tiny.network(3)


@pytest.mark.parametrize("key", PLANS)
async def test_chatterbox_a_stream_sounds_as_the_whole(key, calm):
    whole, chunks = sound(await heard(calm, AT_ONCE)), await heard(calm, PLANS[key])
    found, excess = log_mel_correlation(whole, sound(chunks)).value, join_excess(sound(chunks), joins(chunks))
    print(f"{key}: log-mel correlation {found:.5f}, worst step across a join {excess:.2f} of those around it")
    assert len(chunks) > 2
    assert found >= CORRELATION
    assert excess <= 1.0


async def test_chatterbox_noise_by_relative_frame_is_heard(calm, monkeypatch):
    whole, drawn = sound(await heard(calm, AT_ONCE)), s3gen_nodes.flow_field
    monkeypatch.setattr(s3gen_nodes, "flow_field", lambda seed, p, start, stop: drawn(seed, p, 0, stop - start))
    assert log_mel_correlation(whole, sound(await heard(calm, StreamPlan()))).value < CORRELATION


@pytest.fixture(scope="module")
def near():
    """A network without attention, which hears no further than its convolutions: what a stream shows it is enough."""
    net = tiny.network(4)
    for name, parameter in net.flow.named_parameters():
        if "linear_out" in name or "to_out" in name:
            parameter.zero_()
    return net


async def frames_of(net, plan, frames):
    frames.clear()
    await heard(net, plan)
    return torch.cat(frames)


def without_lookahead(patch):
    patch.setattr(stream, "LOOKAHEAD", 0)


def by_relative_frame(patch):
    drawn = s3gen_nodes.flow_field
    patch.setattr(s3gen_nodes, "flow_field", lambda seed, p, start, stop: drawn(seed, p, 0, stop - start))


@pytest.mark.parametrize("key", PLANS)
async def test_chatterbox_a_stream_shows_all_that_the_convolutions_reach(key, near, frames):
    whole = await frames_of(near, AT_ONCE, frames)
    streamed = await frames_of(near, PLANS[key], frames)
    assert compare(whole, streamed, "max_abs", 1e-4)


@pytest.mark.parametrize("fault", [without_lookahead, by_relative_frame])
async def test_chatterbox_a_stream_that_shows_less_is_caught(fault, near, frames, monkeypatch):
    whole = await frames_of(near, AT_ONCE, frames)
    fault(monkeypatch)
    assert not compare(whole, await frames_of(near, StreamPlan(), frames), "max_abs", 1e-2)


async def test_chatterbox_a_stream_without_context_is_caught(near, frames):
    whole = await frames_of(near, AT_ONCE, frames)
    assert not compare(whole, await frames_of(near, StreamPlan(context=1), frames), "max_abs", 1e-2)


class Stub(nn.Module):
    """Stands for the vocoder: the source's first noise, and how many chunks there have been before this one."""

    def __init__(self, inner, steps, noise):
        super().__init__()
        self.c, self.conv_pre, self.calls = inner.c, inner.conv_pre, 0
        self.steps, self.gain = steps, noise

    def pitch(self, mel):
        return torch.zeros(len(mel), 1, mel.shape[2] * self.c.samples_per_frame)

    def m_source(self, f0, phase, noise):
        return noise[:, :1], torch.zeros_like(noise)

    def forward(self, mel, source):
        self.calls += 1
        return self.gain * source[:, 0] + self.steps * self.calls


def stubbed(net, steps, noise):
    made = tiny.network(3)
    made.flow, made.mel2wav = net.flow, Stub(net.mel2wav, steps, noise)
    return made


async def test_chatterbox_the_source_has_its_noise_by_absolute_sample(calm, monkeypatch):
    async def streamed():
        return sound(await heard(stubbed(calm, 0.0, 1.0), StreamPlan()))[960:]  # behind the fade in

    expected = source_field(UTTERANCE.seed, 0, 260, 480)[0, 960:]
    assert compare(expected, await streamed(), "max_abs", 1e-5)
    monkeypatch.setattr(s3gen_nodes, "source_field", lambda seed, a, b, each: source_field(seed, 0, b - a, each))
    assert not compare(expected, await streamed(), "max_abs", 1e-2)


async def largest_step(calm):
    """The largest step in a sound that is 1, 2, 3, ... in its chunks."""
    chunks = await heard(stubbed(calm, 1.0, 0.0), StreamPlan())
    assert len(chunks) == 3
    return float(sound(chunks)[960:].diff().abs().max())


async def test_chatterbox_tails_are_cross_faded(calm, monkeypatch):
    smooth = np.pi / 2 / (TAIL * 480)  # the steepest point of a raised cosine of that length
    assert await largest_step(calm) <= 1.01 * smooth
    for unfaded in (lambda held, fresh: held, lambda held, fresh: fresh):
        monkeypatch.setattr(s3gen_nodes, "joined", unfaded)
        assert await largest_step(calm) > 0.5


async def test_chatterbox_an_end_without_tokens_gives_out_the_tail(calm, monkeypatch):
    """The end of a stream whose last token has been spoken already: what was held back still comes."""
    monkeypatch.setattr(stream, "LOOKAHEAD", 0)
    utterance = tiny.utterance(35, 2)
    ends = []
    offer = s3gen_nodes.FlowNode.offer

    def watched(self, row):
        found = offer(self, row)
        ends.append(found is self.end)
        return found

    monkeypatch.setattr(s3gen_nodes.FlowNode, "offer", watched)
    chunks = await heard(calm, StreamPlan(), utterance)
    assert [len(chunk) for chunk in chunks] == [(70 - TAIL) * 480, TAIL * 480]
    assert any(ends)
