"""What is let in, what is refused, and what is said of it."""

import asyncio

import numpy as np
import pytest
import torch

from serving.core.contract import Card, LoadedModel, Need, Options, Packed, Piece
from serving.core.engine import Engine, EngineSettings
from serving.core.memory import split
from serving.core.tests import parrot
from serving.core.tests.kit import Paper, running, submit
from serving.core.tests.parrot import Part
from serving.core.tests.stepper import Stepper
from serving.errors import BadRequest, Overloaded, SetupError

LONG = Part(tuple(range(1, 10)), 20)


def engine(model, rows=4, admission=None, **settings):
    options = Options(rows=rows, admission=admission or {})
    return Engine([LoadedModel(Card("paper", "paper", "", {}, "", ""), options, model)], EngineSettings(**settings))


async def test_more_than_a_pool_holds_is_refused_at_once_and_says_how_much_there_is():
    model = parrot.port(2, 20)

    def pieces(job):
        yield Piece("speak", {"parrot.prompt": Packed.one(np.array([1]))}, LONG, {"kv": Need(41)})

    async with running(
        Paper(model.graph.nodes.values(), model.graph.edges, model.graph.walks, model.graph.resources, pieces), rows=2
    ) as made:
        with pytest.raises(BadRequest, match="needs 21 of kv, which holds 20") as refused:
            await submit(made)
        assert (refused.value.status, refused.value.code) == (400, "over_capacity")
        assert made.stats()["free_slots"]["paper"] == 2


def test_a_cap_that_a_pool_cannot_hold_refuses_to_start():
    with pytest.raises(SetupError, match=r"kv holds 25, .* may need 10: .* 4 does not fit; at most 2 do"):
        engine(parrot.port(4, 25))
    engine(parrot.port(4, 25), admission={"kv": "expected"})
    with pytest.raises(SetupError, match="at most 0 do"):
        engine(parrot.port(4, 9), admission={"kv": "expected"})


def test_a_pool_whose_rows_cannot_leave_is_not_overbooked():
    with pytest.raises(SetupError, match=r"parrot cannot be preempted.*parrot -> voice"):
        engine(parrot.port(4, 40, "never"), admission={"kv": "expected"})
    with pytest.raises(SetupError, match=r'has no pool "kw".*kv'):
        engine(parrot.port(4, 40), admission={"kw": "expected"})


def served(pages, cases, rows=4):
    """The clients of these (part, priority), all entered at once, read as they come, and the engine."""
    it = Stepper(parrot.port(rows, pages), rows, {"kv": "expected"})
    clients = [it.enter(f"r{n}", {"parts": [part]}, priority=priority) for n, (part, priority) in enumerate(cases)]
    order = []
    while it.launch():
        for n, client in enumerate(clients):
            it.read(f"r{n}", client)
            if client.end is not None and n not in order:
                order.append(n)
    return it, clients, order


def test_the_request_that_came_last_makes_room_and_ends_last():
    it, clients, order = served(12, [(LONG, 0), (LONG, 0)])
    assert [client.got for client in clients] == [parrot.spoken(LONG, 0)] * 2
    assert it.engine.stats()["preemptions"]["paper"] >= 1
    assert order == [0, 1]


def test_a_request_of_higher_priority_ends_first_whenever_it_came():
    _, clients, order = served(12, [(LONG, 0), (LONG, 0), (LONG, 1)], rows=2)
    assert order[0] != 2, "slots are not taken away"
    assert order.index(2) < 2, "but it begins before one that came earlier"
    assert [client.got for client in clients] == [parrot.spoken(LONG, 0)] * 3


async def test_one_budget_holds_for_all_that_models_hold():
    made = engine(parrot.port(4, 40), memory=2000)
    with pytest.raises(SetupError, match=r"memory_bytes is 0.0 MiB.* kv of paper, with 40 pages: at most \d+ fit"):
        await made.start()
    model = parrot.port(4, 40)
    model.modules = {"net": torch.nn.Linear(10, 10, bias=False)}
    shares = {share.what: share.nbytes for share in split(engine(model).models.values())}
    kv = model.graph.resources["kv"]
    assert shares["weights"] == 400
    assert shares["kv"] == 2 * 41 * parrot.PAGE * 4 + kv.seqs.device.nbytes
    assert shares["state"] == 5 * 8


async def test_rows_that_can_neither_grow_nor_leave_do_not_wait_for_ever():
    """Two requests hold their pages for good (as sessions do), and both want more than is left."""
    model = parrot.port(2, 10)
    shared = parrot.parts

    def pieces(job):
        for piece in shared(job):
            piece.share = ("kv",)
            yield piece

    model._pieces = pieces
    it = Stepper(model, 2, {"kv": "expected"})
    clients = [it.enter(f"r{n}", {"parts": [LONG]}) for n in range(2)]
    while it.launch():
        for n, client in enumerate(clients):
            it.read(f"r{n}", client)
    errors = [client.end.error for client in clients]
    assert errors[0] is None
    assert isinstance(errors[1], Overloaded)
    assert clients[0].got == parrot.spoken(LONG, 0)
    await asyncio.sleep(0)
