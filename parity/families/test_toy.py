"""The toy against its reference of library parts: taps, then nodes, then end to end through the engine."""

import asyncio

import numpy as np
import pytest
import torch

from models import registry
from models.toy.media import pixels
from models.toy.tests.naive import Naive
from parity.invariants.kit import numbers
from serving.core.contract import Audio, Options, Task
from serving.core.engine import Engine

KEY = "toy"
RULES = (  # ours -> the reference's
    ("blocks.*.up", "layers.*.linear1"),
    ("blocks.*.down", "layers.*.linear2"),
    ("blocks.*", "layers.*"),
    ("(root)", "norm"),  # ours ends at the norm, the reference's at its head
)
PARTS = {
    "speaker": ("tokens", "positions", "norm.", "head"),
    "codec": ("table", "mix", "pole"),
    "painter": ("text", "inner", "outer"),
    "listener": ("gate", "input", "said"),
}
LAYER = {"self_attn.in_proj_": "qkv.", "self_attn.out_proj": "out", "linear1": "up", "linear2": "down"}


def ours(name):
    """The port's name of one of the reference's parameters."""
    for theirs, mine in LAYER.items():
        name = name.replace(theirs, mine)
    name = name.replace("layers.", "blocks.")
    part = next((p for p, starts in PARTS.items() if name.startswith(starts)), "speaker")
    return f"{part}.{name}".replace("listener.said", "listener.head")


def loaded(case, rows=8, **options):
    """The port with the case's weights."""
    made = registry.load(KEY, Options(rows=rows, **{"numerics": "invariant", **options}))
    made.model.net.load_state_dict({ours(name): tensor for name, tensor in case.recipe().build().items()})
    return made


def attend(layer, q, k, v):
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1)


@pytest.fixture
def case(oracle):
    return oracle(KEY, "tiny")


@pytest.fixture
def net(case):
    return loaded(case).model.net


def forward(net, case):
    ids = case["inputs/ids"]
    return lambda: net.speaker.head(net.speaker(ids, torch.arange(len(ids)), attend))


def test_toy_layers(case, check, net):
    check.network(case, net.speaker, forward(net, case), rules=RULES)


def test_toy_layer_gate_catches_every_fault(case, check, net):
    run = forward(net, case)
    check.controls(net.speaker, run, lambda: check.measure(case, "outputs/logits", run()))


def test_toy_logits_and_tokens(case, check, net):
    check(case, "outputs/logits", forward(net, case)())
    naive = Naive()
    naive.net = net
    knobs = registry.card(KEY).tasks["speak"](cfg_weight=1.5, max_new_tokens=12, ignore_eos=True)
    assert naive.tokens(case["inputs/ids"].tolist(), knobs) == case.values["tokens"]


def test_toy_codec(case, check, net):
    tokens = torch.tensor([0, 0, *case.values["tokens"], 0])
    excited = net.codec.excite(tokens[None]).flatten(1)
    check(case, "outputs/audio", net.codec.filter(excited, torch.zeros(1))[0][0])


class Session:
    """The port in an engine, asked by the recorded ids, noise and samples."""

    def __init__(self, case, **options):
        self.case = case
        self.made = loaded(case, **options)
        self.engine = Engine([self.made])

    async def __aenter__(self):
        await self.engine.start()
        return self

    async def __aexit__(self, *_):
        await self.engine.stop()

    async def run(self, kind, inputs, port, **fields):
        task = Task(kind, inputs, registry.card(KEY).tasks[kind](**fields))
        handle = await self.engine.submit(KEY, task, request_id=f"t{next(numbers)}", seed=0)
        return [output.value async for output in handle if output.port == port]

    async def speak(self):
        fields = {"cfg_weight": 1.5, "max_new_tokens": 12, "ignore_eos": True, "sentence_chunking": False}
        return torch.from_numpy(np.concatenate(await self.run("speak", {"text": "?"}, "audio", **fields)))


@pytest.fixture
def recorded_text(case, monkeypatch):
    """Text that becomes the recorded ids, noise that is the recorded noise."""
    from models.toy import media

    monkeypatch.setattr(media, "ids", lambda *_: case["inputs/ids"].numpy())
    monkeypatch.setattr(media, "noise", lambda *_: case["inputs/noise"])


@pytest.mark.parametrize("capture", ["eager", "static"])
@pytest.mark.usefixtures("recorded_text")
async def test_toy_served_alone_and_among_eight(case, check, capture):
    async with Session(case, capture=capture) as session:
        alone = await session.speak()
        check(case, "outputs/audio", alone, name="served/audio")
        for audio in await asyncio.gather(*(session.speak() for _ in range(8))):
            assert torch.equal(audio, alone)


@pytest.mark.usefixtures("recorded_text")
async def test_toy_in_fast_numerics_stays_within_its_distance(case, check):
    async with Session(case, numerics="fast", capture="static") as session:
        for audio in await asyncio.gather(*(session.speak() for _ in range(8))):
            check(case, "outputs/audio", audio, name="fast/audio")


@pytest.mark.usefixtures("recorded_text")
async def test_toy_compiled_stays_within_its_distance(case, check):
    async with Session(case, numerics="fast", capture="compiled") as session:
        for audio in await asyncio.gather(*(session.speak() for _ in range(8))):
            check(case, "outputs/audio", audio, name="compiled/audio")
        made = session.engine.stats()["compiled"]["toy.codec"]
    assert list(made["seconds"]) == ["4x32", "8x64"]
    assert made["uncompiled"] == 0


@pytest.mark.usefixtures("recorded_text")
async def test_toy_paints(case):
    async with Session(case) as session:
        (image,) = await session.run("image", {"text": "?"}, "image", steps=6, guidance=2.0, guidance_until=0.5)
    expected = pixels(case["outputs/picture"].numpy(), 8, 8, session.made.model.c)
    assert np.abs(image.astype(int) - expected).max() <= 1


async def test_toy_listens(case):
    samples = case["inputs/samples"].numpy()
    async with Session(case) as session:
        heard = await session.run("generate", {"audio": Audio(samples[None], 8000)}, "tokens")
    assert [int(token) for tokens in heard for token in tokens] == case.values["heard"]
