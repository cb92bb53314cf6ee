"""A prompt's beginning is used again exactly as far as every resource of its node has kept it."""

from dataclasses import replace
from hashlib import sha256

import pytest

from serving.core.tests import parrot
from serving.core.tests.parrot import Part
from serving.core.tests.stepper import Stepper
from serving.resources import Positions, hashing

PROMPT = tuple(range(5, 18))  # 13 tokens in pages of 4; a message ends after 9, and 12 fill whole pages


class Counted:
    """One request after another on one engine, and how much of each prompt was not computed."""

    def __init__(self, hybrid=True, positions=False, **snapshots):
        self.hybrid, self.port = hybrid, parrot.port(2, 30, hybrid=hybrid)
        if positions:
            node = self.port.graph.nodes["parrot"]
            self.port.graph.resources["positions"], node.writes = Positions(slots=2), (*node.writes, "positions")
        self.it = Stepper(self.port, 2)
        for name, value in snapshots.items():
            setattr(self.port.graph.resources["state"].snapshots, name, value)
        self.count = 0

    def say(self, part, seed=0):
        self.count += 1
        before = self.it.model.reuse.reused
        client = self.it.enter(f"r{self.count}", {"parts": [part]}, seed)
        while self.it.launch():
            self.it.read(f"r{self.count}", client)
        assert client.got == parrot.spoken(part, seed, self.hybrid)
        return self.it.model.reuse.reused - before


def test_pages_and_a_snapshot_together_are_a_hit():
    it = Counted()
    assert it.say(Part(PROMPT, 6)) == 0
    assert it.say(Part(PROMPT, 6)) == 12
    assert it.say(Part((*PROMPT[:10], 90, 91, 92), 6)) == 8, "pages are known up to 8, and a message ended there"
    assert it.say(Part((*PROMPT[:7], 90, 91, 92), 6)) == 0, "a page is known, but no state after it"
    assert it.say(Part((6, *PROMPT[1:]), 6)) == 0
    assert it.it.engine.stats()["prompt_tokens"]["paper"] == 13 + 13 + 13 + 10 + 13


@pytest.mark.parametrize(("budget", "reused"), [(0, 0), (8, 12), (16, 12)])
def test_without_the_snapshot_the_pages_are_no_use(budget, reused):
    it = Counted(budget=budget)
    it.say(Part(PROMPT, 3))
    assert len(it.port.graph.resources["kv"].cache) == 3
    assert it.say(Part(PROMPT, 3)) == reused


@pytest.mark.parametrize(("hybrid", "positions", "reused"), [(False, False, 20), (False, True, 20), (True, True, 12)])
def test_what_was_said_is_known_to_the_next_turn_where_pages_are_enough(hybrid, positions, reused):
    """A state after the answer was not kept: it may have run ahead of it."""
    it, first = Counted(hybrid, positions), Part(PROMPT, 8)
    it.say(first)
    said = parrot.spoken(first, 0, hybrid)
    assert it.say(replace(first, prompt=(*PROMPT, *said, 50))) == reused


def test_two_that_run_at_once_share_what_the_first_has_published():
    it = Stepper(parrot.port(2, 30), 2)
    clients = [it.enter("a", {"parts": [Part(PROMPT, 9)]})]
    for _ in range(4):
        it.launch()
    clients.append(it.enter("b", {"parts": [Part(PROMPT, 9)]}, seed=1))
    kv = it.model.graph.resources["kv"]
    assert it.model.reuse.reused == 12
    assert max(kv.pages.refs) == 3, "two owners and the cache"
    while it.launch():
        for name, client in zip("ab", clients, strict=True):
            it.read(name, client)
    assert [client.got for client in clients] == [parrot.spoken(Part(PROMPT, 9), seed) for seed in (0, 1)]


class Meter:
    """SHA-256 that notes how many bytes it is given."""

    given = ()

    def __init__(self, state=None):
        self.state = state or sha256()

    def update(self, data):
        self.given.append(len(data))
        self.state.update(data)

    def copy(self):
        return Meter(self.state.copy())

    def digest(self):
        return self.state.digest()


@pytest.mark.parametrize(("hybrid", "hashed", "read"), [(False, 16, 13 + 6), (True, 12, 13)])
def test_each_token_is_hashed_once(hybrid, hashed, read, monkeypatch):
    """Of a miss and of a hit; up to the last whole page of the prompt, or of prompt and answer."""
    records, encode = [], hashing.encode

    def note(items):
        records.append(len(items))
        return encode(items)

    monkeypatch.setattr(Meter, "given", [])
    monkeypatch.setattr(hashing, "sha256", Meter)
    monkeypatch.setattr(hashing, "encode", note)
    it = Counted(hybrid)
    for reused in (0, 12):
        Meter.given.clear()
        records.clear()
        assert it.say(Part(PROMPT, 6)) == reused
        assert sum(Meter.given) == hashed * hashing.TOKEN
        assert sum(records) == read


def test_prompts_are_hashed_where_the_piece_is_made(monkeypatch):
    monkeypatch.setattr(Meter, "given", [])
    monkeypatch.setattr(hashing, "sha256", Meter)
    it = Stepper(parrot.port(2, 30), 2)
    jobs = []
    it.engine._pool.submit = jobs.append
    it.enter("a", {"parts": [Part(PROMPT, 2), Part((*PROMPT, 4, 4, 4), 2)]})
    Meter.given.clear()
    while not jobs:
        assert it.launch()
    assert not Meter.given, "not on the engine's thread"
    jobs.pop()()
    assert sum(Meter.given) == 16 * hashing.TOKEN
