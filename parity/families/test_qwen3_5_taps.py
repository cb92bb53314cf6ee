"""The port's network against transformers' recorded taps and logits, layer by layer, on tiny random weights."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from parity.families.qwen3_5_naive import OneRow, logits, network
from parity.harness.faults.state import edited

KEY = "qwen3_5_0p8b"
CASES = ["tiny", "tiny_long"]
every_case = pytest.mark.parametrize("name", CASES, ids=[f"{KEY}-{name}" for name in CASES])
UNSEEN = "a few millionths beside a variance near one are less than float32's rounding here"
GATE = 1e-4  # what the ledger allows logits
RULES = (("(root)", "norm"),)  # ours ends at the norm


@pytest.fixture
def recorded(oracle):
    def load(name):
        case = oracle("qwen3_5", name, key=KEY)
        return case, network(case)

    return load


def forward(net, case):
    ids = case["ids"]
    return lambda: OneRow(net.config).run(net, ids, torch.arange(len(ids)).expand(3, -1))


@pytest.mark.parametrize("key", [KEY])
def test_layers_of_both_kinds(recorded, check, key):
    case, net = recorded("tiny")
    check.network(case, net, forward(net, case), rules=RULES, squeeze=True)


@every_case
def test_logits(recorded, check, name):
    case, net = recorded(name)
    check(case, "logits", logits(net, case["ids"]))


@every_case
def test_logits_of_positions_on_three_axes(recorded, check, name):
    case, net = recorded(name)
    placed = logits(net, case["ids"], case["positions"])
    check(case, "placed", placed)
    assert (placed - logits(net, case["ids"])).abs().max() > 1e-2, "the axes change something"


@every_case
def test_greedy_tokens_and_their_log_probabilities(recorded, check, name):
    case, net = recorded(name)
    said = torch.tensor(case.values["tokens"])
    forced = logits(net, torch.cat([case["ids"], said]))[len(case["ids"]) - 1 : -1]
    assert torch.equal(forced.argmax(-1), said)
    check(case, "logprobs", forced.log_softmax(-1).gather(1, said[:, None])[:, 0])


@every_case
@pytest.mark.parametrize("chunk", [1, 2, 7, 19, 64, 65, 100])
def test_prompts_in_chunks(recorded, check, name, chunk):
    case, net = recorded(name)
    check(case, "logits", logits(net, case["ids"], chunk=chunk), name="chunked/logits")


@pytest.mark.parametrize("key", [KEY])
def test_the_gate_catches_every_fault(recorded, check, key):
    case, net = recorded("tiny")
    gate = lambda: check.measure(case, "logits", logits(net, case["ids"]))  # noqa: E731
    late = [f"layers.{i}.{norm}" for i in (1, 2, 3) for norm in ("input_layernorm", "post_attention_layernorm")]
    late += ["layers.3.self_attn.q_norm", "layers.3.self_attn.k_norm", "norm"]
    check.controls(net, forward(net, case), gate, invisible={("wrong epsilon", path): UNSEEN for path in late})


def swapped(tensor, sizes):
    """Blocks of rows in the opposite order."""
    return torch.cat(tensor.split(sizes)[::-1])


def attention_faults(attention):
    query, gate, key, value = attention.split

    def gates(t):
        q, g, rest = t.split([query, gate, key + value])
        return torch.cat([g, q, rest])

    def keys(t):
        q, k, v = t.split([query + gate, key, value])
        return torch.cat([q, v, k])

    yield "query for gate", attention.qkv.weight, gates
    yield "key for value", attention.qkv.weight, keys


def deltanet_faults(net):
    channels, values, heads, _ = net.split

    def write_for_decay(t):
        head, b, a = t.split([channels + values, heads, heads])
        return torch.cat([head, a, b])

    def keys(t):
        q, k, rest = t.split([net.shape.keys, net.shape.keys, len(t) - 2 * net.shape.keys])
        return torch.cat([k, q, rest])

    yield "b for a", net.in_proj.weight, write_for_decay
    yield "query for key", net.in_proj.weight, keys
    yield "oldest for newest", net.conv_weight, lambda t: t.flip(0)
    yield "growth for decay", net.A_log, lambda t: t - 1
    yield "no step", net.dt_bias, torch.zeros_like


def own_faults(net):
    """Mistakes that this family invites: blocks of joined matrices changed about."""
    for layer in net.layers:
        yield "swapped gates", layer.mlp.gate_up.weight, partial(swapped, sizes=net.config.hidden)
        yield from deltanet_faults(layer.linear_attn) if layer.linear else attention_faults(layer.self_attn)
    yield "axes in the wrong order", net.rotary.axes, lambda t: (t + 1) % 3


@every_case
def test_the_gate_catches_joined_matrices_taken_apart_wrongly(recorded, check, name):
    case, net = recorded(name)
    run = partial(logits, net, case["ids"], case["positions"])
    right, missed = run(), []
    for fault, tensor, change in own_faults(net):
        with edited(tensor, change):
            if (run() - right).abs().max() <= 2 * GATE:
                missed.append(fault)
    assert missed == []
