"""Chatterbox up to its speech tokens against chatterbox-tts: conditioning, layers, logits of both lanes, tokens.

The three models are one T3 each on tiny random weights; what is served is the same network on paged caches, and gives
the package's tokens alone and among seven others.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest
import torch

from models import registry
from models.chatterbox import media, text, voice_encoder, weights
from models.chatterbox.alignment import Alignment
from models.chatterbox.conditioning import Conditionals, T3Part
from models.chatterbox.nodes import order_of, params_of
from models.chatterbox.t3 import causal, guide
from models.chatterbox.tests import tiny
from models.chatterbox.tokenizer import English, Multilingual
from parity.invariants.kit import numbers
from serving.core.contract import Audio, Batch, LoadedModel, Options, Task
from serving.core.engine import Engine
from serving.resources import Sampler, draws

FAMILY = "chatterbox"
SAID = {
    "english": "chatterbox",
    "english_drawn": "chatterbox",
    "english_unguided": "chatterbox",
    "multilingual": "chatterbox_multilingual",
    "multilingual_drawn": "chatterbox_multilingual",
    "turbo": "chatterbox_turbo",
    "turbo_drawn": "chatterbox_turbo",
}
TAPPED = {name: SAID[name] for name in ("english", "multilingual", "turbo")}
START = 6561


def each(cases):
    """Parametrised over cases; the ids name the key."""
    return pytest.mark.parametrize("name", list(cases), ids=[f"{key}-{name}" for name, key in cases.items()])


@pytest.fixture
def case(oracle, name):
    return oracle(FAMILY, name, key=SAID[name])


@pytest.fixture
def net(case):
    return weights.load_t3(case.recipe().build())


def embeds(net, case, lane=0):
    """What goes into the backbone, up to the first start token: [T, D]."""
    ids = case["inputs/text"][0]
    prefix = net.condition(case["inputs/speaker"], case["inputs/prompt"], case["inputs/emotion"].view(-1))[0]
    words = net.text(ids, torch.arange(len(ids)), torch.full((len(ids),), lane == 0))
    return torch.cat([prefix, words, net.speech(torch.tensor([START]), torch.tensor([0]))])


@each(TAPPED)
def test_conditioning_and_embeddings(case, net, check):
    prefix = net.condition(case["inputs/speaker"], case["inputs/prompt"], case["inputs/emotion"].view(-1))
    check(case, "taps/conditioning", prefix)
    lanes = case["taps/embeds"].shape[0]
    check(case, "taps/embeds", torch.stack([embeds(net, case, lane) for lane in range(lanes)]))


@each(TAPPED)
def test_layers(case, net, check):
    found: dict[str, list] = {}
    layers = net.tfmr.h if net.config.turbo else net.tfmr.layers
    for i, layer in enumerate(layers):
        layer.register_forward_hook(lambda _, args, out, i=i: found.setdefault(f"layer{i}", []).append(out))
    for given in case["taps/embeds"]:
        found.setdefault("hidden", []).append(causal(net, given))
    for tap, lanes in found.items():
        check(case, f"taps/{tap}", torch.stack(lanes))


class Said:
    """The reference's tokens fed to the port step by step: logits of every lane, and what the filters leave."""

    def __init__(self, net, case):
        self.net, self.case = net, case
        self.tokens = case["outputs/tokens"].tolist()
        lanes = 1 if net.config.turbo else 2
        unguided = case.config.get("cfg_weight") == 0
        self.lanes = torch.stack([self._lane(0 if unguided else lane) for lane in range(lanes)])

    def _lane(self, lane):
        """Logits [steps, V]. Guidance aside, the start token stands twice."""
        start = embeds(self.net, self.case, lane)
        said = torch.tensor([START, *self.tokens[:-1]] if not self.net.config.turbo else self.tokens[:-1])
        speech = self.net.speech(said, torch.arange(len(said)) + int(self.net.config.turbo))
        hidden = causal(self.net, torch.cat([start, speech]))
        return self.net.logits(hidden[-len(self.tokens) :])

    def guided(self):
        if self.net.config.turbo:
            return self.lanes[0]
        return guide(*self.lanes, torch.full((len(self.tokens),), self.case.config["cfg_weight"]))

    def kept(self, order=None):
        """Probabilities [steps, V] after the sampler's operations, in the model's order or another."""
        c = self.net.config
        sampler = Sampler(slots=1, vocab=c.speech_vocab, order=order or order_of(c))
        k = knobs_of(self.case, SAID[self.case.manifest.case])
        found, logits = [], self.guided()
        for step, row in enumerate(logits):
            spoken = self.tokens[:step] if c.turbo and step else [START, *self.tokens[:step]]
            sampler.set(1, params_of(k, c.speech_vocab), prompt=spoken)
            batch = Batch(1, 1, 1, [], torch.tensor([1]), np.array([1]), np.array([1]), [("cond",)])
            found.append(sampler.plan(batch, write=True).process(row[None])[0].softmax(-1))
        return torch.stack(found)


def knobs_of(case, key):
    """The case's sampling as a request's knobs; without any the most likely token is taken."""
    sampling = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.2, "min_p": 0.0, "top_k": 0}
    fields = {**sampling, **case.config.get("sampling", {})}
    if key != "chatterbox_turbo":
        fields["cfg_weight"] = case.config["cfg_weight"]
    return registry.card(key).tasks["speak"](
        **fields, exaggeration=0.7, max_new_tokens=case.config["steps"], ignore_eos=True
    )


@each(SAID)
def test_logits_of_every_lane_and_step(case, net, check):
    said = Said(net, case)
    check(case, "taps/logits", said.lanes.transpose(0, 1))


@each({name: key for name, key in SAID.items() if not name.startswith("multilingual")})
def test_what_the_sampler_keeps(case, net, check):
    check(case, "taps/kept", Said(net, case).kept())


@pytest.mark.parametrize("name", ["turbo_drawn"], ids=["chatterbox_turbo-turbo_drawn"])
def test_the_sampler_gate_catches_another_order(case, net, check):
    assert not check.measure(case, "taps/kept", Said(net, case).kept(("penalty", "temperature", "top_k", "top_p")))


@each(TAPPED)
def test_the_logits_gate_catches_every_planted_fault(case, net, check, monkeypatch):
    logits = Said(net, case).lanes.transpose(0, 1)
    if not net.config.turbo:
        assert not check.measure(case, "taps/logits", logits.flip(1)), "swapped lanes"
    speech, word = type(net).speech, type(net).text
    faults = {
        "speech": lambda self, ids, at: speech(self, ids, (at + 1).clamp(max=100)),
        "text": lambda self, ids, at, knows: word(self, ids.roll(1), at, knows),
    }
    for name, fault in faults.items():
        if name == "speech" and net.config.turbo:  # it has no positions of speech
            continue
        with monkeypatch.context() as patch:
            patch.setattr(type(net), name, fault)
            assert not check.measure(case, "taps/logits", Said(net, case).lanes.transpose(0, 1)), name


class Served:
    """The port of a case through the engine, in the case's voice, its draws those that were recorded."""

    def __init__(self, case, net, numerics="fast"):
        self.case, self.key = case, SAID[case.manifest.case]
        options = Options(numerics=numerics)
        self.port = tiny.port(self.key, options, net)
        voice = Conditionals(T3Part(case["inputs/speaker"], case["inputs/prompt"]), tiny.voice().gen)
        self.port._voices._held["default"] = voice
        words = case["inputs/text"][0].numpy()
        self.port.tokenizer = lambda text, language: words if text == "case" else tiny.Letters()(text, language)
        self.engine = Engine([LoadedModel(registry.card(self.key), options, self.port)])
        self.knobs = knobs_of(case, self.key)
        if "sampling" not in case.config:
            self.knobs = self.knobs.model_copy(update={"temperature": 0.0})
        self.prompt = net.config.prefix(case.config["prompt"]) + len(words) + (1 if net.config.turbo else 2)

    async def say(self, text="case", seed=5, **knobs):
        task = Task("speak", {"text": text}, self.knobs.model_copy(update=knobs))
        handle = await self.engine.submit(self.key, task, request_id=f"c{next(numbers)}", seed=seed)
        sound = [output.value async for output in handle if output.port == "audio"]
        return np.concatenate(sound)[:: tiny.SAMPLES].astype(int).tolist()

    def wanted(self):
        """The package's tokens without control tokens; Turbo's end in silence."""
        said = [token for token in self.case["outputs/tokens"].tolist() if token < START]
        return said + [4299] * 3 * ("turbo" in self.key)


@asynccontextmanager
async def serving(case, net, numerics="fast"):
    made = Served(case, net, numerics)
    await made.engine.start()
    try:
        yield made
    finally:
        await made.engine.stop()


@pytest.fixture
def recorded_draws(case, monkeypatch):
    """The sampler's draws: the case's, by step."""
    if "inputs/drawn" not in case:
        return
    drawn = case["inputs/drawn"].numpy()
    words, c = case["inputs/text"].shape[1], weights.from_shapes(case.recipe().build())
    prompt = c.prefix(case.config["prompt"]) + words + (1 if c.turbo else 2)

    def uniform(keys, positions):
        found = drawn[(positions - prompt).clip(0, len(drawn) - 1)]
        return np.broadcast_to(found, np.broadcast_shapes(keys.shape, positions.shape))

    monkeypatch.setattr(draws, "uniform", uniform)


@each(SAID)
async def test_served_tokens_are_the_packages_alone_and_among_eight(case, net, recorded_draws):
    async with serving(case, net) as served:
        assert await served.say() == served.wanted()
        neighbours = [served.say(f"another text {i}", cfg_weight=i % 2 / 2, temperature=0.9) for i in range(7)]
        among, *_ = await asyncio.gather(served.say(), *neighbours)
        assert among == served.wanted()


@pytest.mark.parametrize("name", ["english", "multilingual"], ids=["chatterbox-english", "chatterbox_multilingual"])
async def test_served_faults_are_caught(case, net, monkeypatch):
    """Swapped lanes and a wrong position show in the tokens."""
    node = type(tiny.port(SAID[name_of(case)]).graph.nodes["t3"])
    embed = node._embed

    def swapped(self, b):
        b.buffers["knows"].logical_not_()
        return embed(self, b)

    def late(self, b):
        self.speech_from[b.slots] -= 1
        try:
            return embed(self, b)
        finally:
            self.speech_from[b.slots] += 1

    for fault in (swapped, late):
        monkeypatch.setattr(node, "_embed", fault)
        async with serving(case, net) as served:
            assert await served.say() != served.wanted(), fault.__name__


def name_of(case):
    return case.manifest.case


ANALYSED = pytest.mark.parametrize("script", ["steady", "goes_back", "false_start", "jumps", "short", "stutters"])
KEY = "chatterbox_multilingual"


def analysis(case, script):
    """The analyser's state and its word on the end, step by step, from scripted attention."""
    seen = case[f"inputs/{script}_attention"].mean(0)
    tokens = case[f"inputs/{script}_tokens"]
    made = Alignment(1, tiny.CONFIGS[KEY], "cpu", columns=seen.shape[1], width=64)
    made.reset(1, seen.shape[1])
    made.state["opening"][1] = seen[0, 0]
    slot, found = torch.tensor([1]), []
    for step, row in enumerate(seen[1:]):
        logits = made.step(torch.zeros(1, 6563), row[None], slot, tokens[step : step + 1], torch.tensor([True]))
        state = [int(made.state[name][1]) for name in ("position", "started", "complete")]
        found.append([*state, int(logits[0, 6562].sign())])
    return torch.tensor(found)


@ANALYSED
@pytest.mark.parametrize("key", [KEY])
def test_the_alignment_analyser_decides_as_the_packages(oracle, check, key, script):
    case = oracle(FAMILY, "analyser", key=key)
    check(case, f"outputs/{script}", analysis(case, script))


@pytest.mark.parametrize("key", [KEY])
def test_the_analyser_gate_catches_a_missing_limit(oracle, check, key, monkeypatch):
    case = oracle(FAMILY, "analyser", key=key)
    monkeypatch.setattr("models.chatterbox.alignment.LIMIT", 100.0)
    for script in ("steady", "goes_back"):
        assert not check.measure(case, f"outputs/{script}", analysis(case, script))


SPEAKERS = pytest.mark.parametrize("name", ["speaker", "speaker_short"], ids=["chatterbox-long", "chatterbox-short"])


@SPEAKERS
def test_speaker_encoder(oracle, check, name):
    case = oracle(FAMILY, name)
    sound = case["inputs/sound"].numpy()
    with torch.inference_mode():
        net = weights.load_speaker(case.recipe().build())
        partials = voice_encoder.parts(voice_encoder.mel(torch.from_numpy(voice_encoder.trimmed(sound))))
        check(case, "taps/partials", partials)
        check(case, "taps/parts", net(case["taps/partials"]))
        check(case, "outputs/embedding", net.embed(sound))
    unused = sum(len(name) > 0 for name in weights.UNUSED_SPEAKER)
    assert sum(p.numel() for p in net.parameters()) + unused == case.values["parameters"]


@pytest.mark.parametrize("key", ["chatterbox"])
def test_the_speaker_gate_catches_untrimmed_silence(oracle, check, key, monkeypatch):
    case = oracle(FAMILY, "speaker", key=key)
    monkeypatch.setattr(voice_encoder, "trimmed", lambda sound: sound)
    with torch.inference_mode():
        net = weights.load_speaker(case.recipe().build())
        assert not check.measure(case, "outputs/embedding", net.embed(case["inputs/sound"].numpy()))


@pytest.mark.parametrize("name", ["clip", "clip_low"], ids=["chatterbox-44k", "chatterbox-16k"])
def test_a_clip_is_heard_as_the_packages_hear_it(oracle, check, name):
    case = oracle(FAMILY, name)
    audio = Audio(case["inputs/sound"].numpy()[None], case.config["rate"])
    high, low = media.heard(audio)
    check(case, "outputs/at_24k", torch.from_numpy(high))
    check(case, "outputs/at_16k", torch.from_numpy(low))
    check(case, "outputs/levelled_16k", torch.from_numpy(media.heard(audio, level=True)[1]).double())


@pytest.mark.parametrize("key", ["chatterbox"])
def test_punctuation_and_ids_are_the_packages(oracle, key, tmp_path):
    values = oracle(FAMILY, "text", key=key).values
    path = tmp_path / "tokenizer.json"
    path.write_text(values["tokenizer"])
    (tmp_path / "Cangjie5_TC.json").write_text(str(values["cangjie"]).replace("'", '"'))
    for name, options in {"english": {}, "turbo": {"turbo": True}, "multilingual": {"wide": True}}.items():
        for given, wanted in values[f"punctuation_{name}"].items():
            if given:  # an empty text is refused here
                assert text.punctuated(given, **options) == wanted
    english, multilingual = English(path), Multilingual(path)
    assert {given: english.encode(given) for given in values["english"]} == values["english"]
    for language, (given, wanted) in values["multilingual"].items():
        assert multilingual.encode(given, language) == wanted, language
