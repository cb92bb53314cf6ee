"""Chatterbox from speech tokens to sound, against chatterbox-tts: flow step by step, vocoder, voice prompt."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from models.chatterbox import voice_prompt, watermark
from models.chatterbox.flow import Window
from models.chatterbox.s3gen import S3Gen
from models.chatterbox.s3gen_config import TURBO, S3GenConfig
from models.chatterbox.s3gen_noise import Draws
from models.chatterbox.s3gen_weights import converted, s3gen
from models.chatterbox.stream import StreamPlan
from models.chatterbox.tests import tiny_s3gen as tiny
from models.chatterbox.vocoder_source import Phase
from models.components.audio import sinc, soxr_hq
from models.components.audio.kaldi import fbank
from models.weights.loading import load_strict, on_meta
from parity.harness import compare
from serving.core.contract import Audio

FAMILY = "chatterbox_s3gen"
KEYS = {"s3gen_whole": "chatterbox", "s3gen_short": "chatterbox", "s3gen_turbo": "chatterbox_turbo"}
PARAMETERS = 263_933_767  # of the package's S3Gen, gains of weight norms included


@pytest.fixture
def case(oracle, request):
    name = request.param
    return oracle(FAMILY, name, key=KEYS.get(name, "chatterbox"))


every_case = pytest.mark.parametrize("case", KEYS, indirect=True, ids=[f"{KEYS[name]}-{name}" for name in KEYS])
voice_case = pytest.mark.parametrize("case", ["s3gen_voice"], indirect=True, ids=["chatterbox"])


def networks(case, *parts):
    """Parts of S3Gen with the weights of the case's recipe."""
    state = converted(case.recipe("weights").build())
    whole = on_meta(lambda: S3Gen(tiny.TURBO if case.config.get("turbo") else tiny.CONFIG))
    found = {}
    for part in parts:
        own = {name.partition(".")[2]: value for name, value in state.items() if name.startswith(part + ".")}
        found[part] = load_strict(getattr(whole, part), own).eval()
    assert {name.partition(".")[0] for name in state} == set(parts)
    return SimpleNamespace(**found)


class Run:
    """The port's own computation of a case, stage by stage."""

    def __init__(self, case):
        self.case, self.net = case, networks(case, "flow", "mel2wav")
        self.prompt = case["inputs/prompt_feat"].shape[1]
        self.tokens = torch.cat([case["inputs/prompt_token"], case["inputs/tokens"][None]], 1)
        self.frames = 2 * self.tokens.shape[1]
        self.draws = Draws(case.config["seed"])
        said = 2 * len(case["inputs/tokens"])
        self.start = self.draws.flow(self.frames - said, said, case.config.get("turbo", False))
        self.offsets = self.draws.offsets()
        self.noise = self.draws.source(480 * (self.frames - self.prompt))

    def window(self, pad=0):
        """The whole utterance, padded by so many tokens."""
        count, frames = self.tokens.shape[1], self.frames + 2 * pad
        mel = torch.nn.functional.pad(self.case["inputs/prompt_feat"], (0, 0, 0, frames - self.prompt))
        noise = torch.nn.functional.pad(self.start, (0, 2 * pad))[None]
        tokens = torch.nn.functional.pad(self.tokens, (0, pad))
        counts = torch.tensor([count]), torch.tensor([2 * count])
        return Window(tokens, *counts, mel, self.case["inputs/embedding"], noise, pad == 0)

    def states(self, pad=0):
        """Mel and where every Euler step began, by name."""
        found, estimator = [], self.net.flow.decoder.estimator
        handle = estimator.register_forward_pre_hook(lambda _, args: found.append(args[0][:1, :, : self.frames]))
        mel = self.net.flow(self.window(pad), self.case.config["steps"])[:, :, self.prompt : self.frames]
        handle.remove()
        return mel, {f"taps/step{i}": state.clone() for i, state in enumerate(found)}

    def sound(self, mel):
        phase = Phase(torch.zeros(1, 9), self.offsets[None])
        source, _ = self.net.mel2wav.m_source(self.net.mel2wav.pitch(mel), phase, self.noise[None])
        return source, self.net.mel2wav(mel, source)


@pytest.fixture
def run(case):
    with torch.inference_mode():
        yield Run(case)


@every_case
def test_chatterbox_noise_is_what_the_package_draws(case, run, check):
    check(case, "inputs/start", run.start[None])
    check(case, "inputs/noise", run.noise[None])
    drawn = case["inputs/phase"][0]
    torch.testing.assert_close(run.offsets[1:], drawn[1:], rtol=0, atol=0)


@every_case
def test_chatterbox_encoder(case, run, check):
    window = run.window()
    embedded = run.net.flow.input_embedding(window.tokens)
    check(case, "taps/encoded", run.net.flow.encoder(embedded))
    check(case, "taps/mu", run.net.flow.encode(window))


@pytest.mark.parametrize("case", ["s3gen_whole"], indirect=True, ids=["chatterbox"])
def test_chatterbox_encoder_layer_by_layer(case, run, check):
    encoder = run.net.flow.encoder
    check.network(case, encoder, lambda: run.net.flow.encode(run.window()), prefix="encoder")


@every_case
def test_chatterbox_every_euler_step(case, run, check):
    mel, states = run.states()
    check.taps(case, states)
    check(case, "outputs/mel", mel)


@every_case
def test_chatterbox_padding_moves_the_flow_by_rounding_only(case, run, check):
    mel, _ = run.states(pad=9)
    check(case, "outputs/mel", mel, name="padded/mel")


@every_case
def test_chatterbox_vocoder(case, run, check):
    mel = case["outputs/mel"]
    check(case, "taps/f0", run.net.mel2wav.f0_predictor(mel))
    source, sound = run.sound(mel)
    check(case, "taps/source", source.transpose(1, 2))
    check(case, "outputs/audio", sound)


def knobs_of(case):
    """What the nodes find in a row's knobs, from a case."""
    gen = SimpleNamespace(**{name: case[f"inputs/{name}"] for name in ("prompt_token", "prompt_feat", "embedding")})
    fields = SimpleNamespace(n_cfm_timesteps=case.config["steps"], watermark=False)
    tokens = case["inputs/tokens"].numpy()
    return tiny.Spoken(SimpleNamespace(gen=gen), case.config["seed"], tokens, fields)


def whole_network(case):
    """S3Gen with the case's flow and vocoder; what reads clips is not run."""
    net = tiny.network(1, tiny.TURBO if case.config.get("turbo") else tiny.CONFIG)
    part = networks(case, "flow", "mel2wav")
    net.flow, net.mel2wav = part.flow, part.mel2wav
    return net


@every_case
async def test_chatterbox_whole_utterance_served_is_the_packages(case, check):
    async with tiny.Bench(whole_network(case)) as bench:
        sound = torch.from_numpy(await bench.speak(knobs_of(case)))
    check(case, "outputs/faded", sound[None], name="served/audio")


@voice_case
def test_chatterbox_voice_of_a_clip(case, check):
    """Every stage from a clip at 44.1 kHz to what S3Gen and T3 are told of its voice."""
    net = tiny.network()
    part = networks(case, "tokenizer", "speaker_encoder")
    net.tokenizer, net.speaker_encoder = part.tokenizer, part.speaker_encoder
    wav = voice_prompt.at_24k(Audio(case["inputs/clip"].numpy()[None], 44_100))
    heard = voice_prompt.at_16k(wav)
    check(case, "taps/at24", torch.from_numpy(wav))
    check(case, "taps/at16", torch.from_numpy(heard))
    lower = sinc.resample(torch.from_numpy(wav), 24_000, 16_000)
    check(case, "taps/sinc16", lower[None])
    check(case, "taps/fbank", fbank(lower, 80))
    mel = net.tokenizer.mel(lower)[None]
    check(case, "taps/tokenizer_mel", mel)
    with torch.inference_mode():
        check(case, "taps/tokenizer_hidden", net.tokenizer.encoder(mel))
    found = voice_prompt.prompt(net, wav)
    for name in ("prompt_token", "prompt_feat", "embedding"):
        check(case, f"outputs/{name}", getattr(found, name))
    check(case, "outputs/short", voice_prompt.prompt_tokens(net, heard, 2, 30))


@pytest.fixture(scope="module")
def perth():
    return watermark.load()


@pytest.mark.parametrize("case", ["s3gen_watermark"], indirect=True, ids=["chatterbox"])
def test_chatterbox_watermark_networks_are_the_packages(case, perth, check):
    """The package's own resampler in front, then its magnitudes, its mark and what its detector makes of both."""
    at32 = torch.from_numpy(soxr_hq.resample(case["inputs/plain"].numpy(), 24_000, 32_000))
    magnitude = perth.spectrum(at32[None]).magnitude
    check(case, "taps/magnitude", magnitude[0])
    check(case, "taps/mask", watermark.loud(magnitude))
    encoded = magnitude.clone()
    encoded[:, : watermark.BANDS] += perth.encoder(magnitude)
    check(case, "taps/encoded", encoded)
    check(case, "taps/decoded", torch.cat([perth.decoder(magnitude), perth.decoder(encoded)]))


@pytest.mark.parametrize("case", ["s3gen_watermark"], indirect=True, ids=["chatterbox"])
def test_chatterbox_watermark_is_heard_where_it_is_and_nowhere_else(case, perth, check):
    plain = case["inputs/plain"]
    marked = perth.mark(plain[None], 24_000)
    chunks = torch.cat([perth.mark(part[None], 24_000) for part in plain.split([8000, 15_000, 25_000])], 1)
    heard = [float(perth.detect(sound, 24_000)) for sound in (marked, chunks, case["outputs/marked"][None])]
    assert heard == [1.0, 1.0, 1.0] == [case.values["on_marked"]] * 3
    assert float(perth.detect(plain[None], 24_000)) == 0.0 == case.values["on_plain"]
    check(case, "outputs/marked", marked[0], name="mark/audio")


class Buzz(nn.Module):
    """Stands for the vocoder: a voice-like excitation and nothing behind it, as a mark needs a voice to be in."""

    def __init__(self, inner):
        super().__init__()
        self.c, self.conv_pre, self.m_source = inner.c, inner.conv_pre, inner.m_source
        self.m_source.l_linear.weight.copy_(5.0 / torch.arange(1, 10)[None])

    def pitch(self, mel):
        frames = 140 + 30 * mel.mean(1).tanh()
        return frames.repeat_interleave(self.c.samples_per_frame, 1)[:, None]

    def forward(self, mel, source):
        return 0.2 * source[:, 0]


async def test_chatterbox_watermark_is_on_what_is_served_whole_and_streamed(perth, parity_record):
    parity_record.keys.append("chatterbox")
    net = tiny.network()
    net.mel2wav = Buzz(net.mel2wav)
    spoken = tiny.utterance(60, 2, knobs=SimpleNamespace(n_cfm_timesteps=2, watermark=True))
    unmarked = tiny.utterance(60, 2, knobs=SimpleNamespace(n_cfm_timesteps=2, watermark=False))
    for plan in (tiny.WHOLE, StreamPlan(first=15)):
        async with tiny.Bench(net, plan, mark=lambda sound: perth.mark(sound, 24_000)) as bench:
            marked, plain = (torch.from_numpy(one)[None] for one in await bench.together([spoken, unmarked]))
        # As the package's detector answers: rounded.
        assert [float(perth.detect(sound, 24_000).round()) for sound in (marked, plain)] == [1.0, 0.0]


FAULTS = {
    "another seed": lambda run: setattr(run, "start", run.start.roll(1)),
    "the prompt's mel a frame late": lambda run: run.case["inputs/prompt_feat"].copy_(
        run.case["inputs/prompt_feat"].roll(1, 1)
    ),
    "no guidance": lambda run: setattr(run.net.flow.decoder, "meanflow", True),
    "an even schedule": lambda run: setattr(
        run.net.flow.decoder, "schedule", lambda steps: torch.linspace(0, 1, steps + 1)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("case", ["s3gen_whole"], indirect=True, ids=["chatterbox"])
def test_chatterbox_flow_gate_catches(case, run, fault):
    FAULTS[fault](run)
    mel = run.net.flow(run.window(), case.config["steps"])[:, :, run.prompt :]
    assert not compare(case["outputs/mel"], mel, "max_abs", 1e-4)


def by_name(names):
    """Tensors without storage, of these names and shapes; a count has no shape."""
    sizes = {name: [int(n) for n in shape.split("x") if n] for name, shape in names.items()}
    kinds = {name: torch.float32 if size else torch.int64 for name, size in sizes.items()}
    return {name: torch.empty(size, dtype=kinds[name], device="meta") for name, size in sizes.items()}


@pytest.mark.parametrize("key", ["chatterbox", "chatterbox_turbo"])
def test_chatterbox_real_checkpoints_fit_by_name_and_shape(oracle, key):
    """Every tensor of the package's own S3Gen at its real dimensions has its place, and every place its tensor."""
    case = oracle(FAMILY, "s3gen_whole", key=key)
    names = dict(case.values["names"])
    if key == "chatterbox_turbo":
        names |= case.values["names_turbo_adds"]
    given = by_name(names)
    config = TURBO if key == "chatterbox_turbo" else S3GenConfig()
    net = load_strict(on_meta(lambda: S3Gen(config)), converted(given))
    gains = sum(tensor.numel() for name, tensor in given.items() if name.endswith("original0"))
    extra = 2048 * 1024 if key == "chatterbox_turbo" else 0
    assert sum(p.numel() for p in net.parameters()) + gains == PARAMETERS + extra


def test_chatterbox_tiny_checkpoint_in_real_names_loads_both_ways(oracle):
    """A checkpoint with one tensor too few, too many or misshapen is refused."""
    state = {}
    for name in ("s3gen_whole", "s3gen_voice"):
        state |= oracle(FAMILY, name, key="chatterbox").recipe("weights").build()
    given = state | {"tokenizer.window": torch.zeros(400), "tokenizer._mel_filters": torch.zeros(128, 201)}
    assert s3gen(given, tiny.CONFIG).config is tiny.CONFIG
    some = "flow.encoder.encoders.0.self_attn.pos_bias_u"
    for broken in (state | {"flow.more": torch.zeros(1)}, state | {some: torch.zeros(2)}, dict(state)):
        if set(broken) == set(state) and broken[some].dim() > 1:
            del broken[some]
        with pytest.raises(Exception, match="do not fit"):
            s3gen(broken, tiny.CONFIG)
