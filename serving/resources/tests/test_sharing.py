"""Windows and rings, forks, prefixes and offload: what sequences share, forget and take along."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from serving.errors import Overloaded
from serving.resources.hashing import media_key
from serving.resources.prefix import page_keys
from serving.resources.tests.batches import batch
from serving.resources.tests.tokens import Tokens, admit, chunks, make, run


def close(got, want):
    torch.testing.assert_close(got, want, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("numerics", ["fast", "invariant"])
@pytest.mark.parametrize(("window", "sinks", "page_size"), [(10, 0, 4), (7, 3, 4), (20, 5, 16), (64, 0, 16)])
def test_a_window_sees_what_it_should_in_a_bounded_ring(numerics, window, sinks, page_size):
    kv = make(numerics=numerics, page_size=page_size, window=window, sinks=sinks, step=9, max_len=1000, pages=60)
    tokens = {1: Tokens(150, 1), 2: Tokens(90, 2)}
    admit(kv, 1, units=150)
    admit(kv, 2, units=90)
    bound = (window + sinks + 2 * 9) // page_size + 4
    assert kv.pages.count - kv.pages.free <= 2 * bound
    assert kv.need(("main",), 1000) <= bound
    got = run(kv, tokens, [{1: 9, 2: 5}] * 10 + [{1: 1, 2: 1}] * 40 + [{1: 4}] * 5)
    for slot, want in tokens.items():
        close(got[slot], want.naive(window, sinks))


def test_an_invariant_window_does_not_depend_on_chunks():
    tokens = Tokens(100, 1)

    def outputs(size):
        kv = make(numerics="invariant", window=20, sinks=2, step=40, max_len=500)
        admit(kv, 1, units=100)
        return run(kv, {1: tokens}, [{1: u} for u in chunks(100, size)])[1]

    whole = outputs(40)
    for size in (1, 7, 16, 33):
        assert torch.equal(outputs(size), whole)


def test_a_window_survives_rollback_but_not_more():
    kv = make(page_size=4, window=8, step=6, max_len=500)
    admit(kv, 1, units=200)
    tokens = Tokens(60, 1)
    run(kv, {1: tokens}, [{1: 6}] * 6)
    junk = torch.full((6, 4, 8), 9.0)
    ahead = [batch([1], [6]), batch([1], [6])]
    for b in ahead:
        kv.plan(b, write=True).attend(0, junk, junk[:, :2], junk[:, :2])
    for b in ahead:
        kv.commit(b, np.array([0]))
    got = run(kv, {1: tokens}, [{1: 1}] * 24, done={1: 36})
    close(got[1], tokens.naive(8)[36:])
    with pytest.raises(ValueError, match="at most 6"):
        kv.plan(batch([1], [7]), write=True)
    with pytest.raises(ValueError, match="cannot go back"):
        kv.truncate("r1", 20)


def test_a_fork_shares_full_pages_and_then_goes_its_own_way():
    kv = make(lanes=("main", "other"))
    admit(kv, 1, units=60)
    admit(kv, 2, units=60)
    stem = Tokens(37, 1)
    run(kv, {1: stem}, [{1: 37}])
    free = kv.pages.free
    kv.fork("r1", "r2")
    assert kv.pages.free == free + 2, "two full pages are shared, the third is copied"
    ends = {1: Tokens(20, 2), 2: Tokens(20, 3)}
    got = run(kv, ends, [{1: 9, 2: 4}, {2: 16, 1: 11}])
    for slot, end in ends.items():
        whole = Tokens(0, 0)
        whole.q, whole.k, whole.v = (torch.cat([getattr(stem, n), getattr(end, n)]) for n in "qkv")
        close(got[slot], whole.naive()[37:])
    kv.release("r1")
    kv.release("r2")
    assert kv.pages.free == kv.pages.count


def test_guidance_lanes_fork_within_an_owner():
    kv = make(lanes=("cond", "uncond"))
    admit(kv, 1, units=40, lanes=("cond", "uncond"))
    stem = Tokens(20, 1)
    kv.plan(batch([1], [20], [("cond",)]), write=True).attend(0, stem.q, stem.k, stem.v)
    kv.fork("r1", "r1", {"cond": "uncond"})
    assert kv.stored("r1", "uncond") == 20
    end = Tokens(2, 2)
    got = kv.plan(batch([1], [1], [("cond", "uncond")]), write=True)
    got = got.attend(0, end.q[:1].repeat(2, 1, 1), end.k[:1].repeat(2, 1, 1), end.v[:1].repeat(2, 1, 1))
    close(got[0], got[1])


def test_going_back_into_a_shared_page_copies_it():
    kv = make(pages=8)
    admit(kv, 1, units=48)
    admit(kv, 2, units=48)
    stem = Tokens(40, 1)
    run(kv, {1: stem}, [{1: 40}])
    kv.fork("r1", "r2")
    kv.truncate("r2", 20)
    other = Tokens(20, 5)
    run(kv, {2: other}, [{2: 20}])
    more = Tokens(4, 6)
    whole = Tokens(0, 0)
    whole.q, whole.k, whole.v = (torch.cat([getattr(stem, n), getattr(more, n)]) for n in "qkv")
    close(run(kv, {1: more}, [{1: 4}])[1], whole.naive()[40:])
    for name in "qkv":
        setattr(whole, name, torch.cat([getattr(stem, name)[:20], getattr(other, name), getattr(more, name)]))
    close(run(kv, {2: more}, [{2: 4}])[2], whole.naive()[40:])


def test_going_back_without_pages_to_copy_to_is_an_overload():
    kv = make(pages=6)
    admit(kv, 1, units=48)
    admit(kv, 2, units=48)
    run(kv, {1: Tokens(40, 1)}, [{1: 40}])
    kv.fork("r1", "r2")
    assert kv.reserve("r3", ("main",), 32)
    with pytest.raises(Overloaded):
        kv.truncate("r2", 20)
    assert kv.stored("r2") == 40


def adopt(kv, owner, content):
    """As the engine does: the longest beginning that is known."""
    length = max(kv.known({"main": content}), default=0)
    if length:
        kv.adopt(owner, {"main": content}, length)
    return length


def test_a_known_prefix_is_not_computed_again():
    kv = make(pages=20)
    tokens = Tokens(70, 1)
    content = list(range(70))
    admit(kv, 1, units=70)
    run(kv, {1: tokens}, [{1: 70}])
    kv.publish("r1", {"main": content})
    assert len(kv.cache) == 4
    kv.release("r1")
    assert kv.pages.free == 16
    admit(kv, 2, units=70)
    assert adopt(kv, "r2", content) == 64
    assert kv.pages.free == 15, "four shared pages and one of its own"
    got = run(kv, {2: tokens}, [{2: 6}], done={2: 64})
    close(got[2], tokens.naive()[64:])
    kv.release("r2")
    assert kv.pages.free + len(kv.cache) == 20


def test_a_prefix_leaves_at_least_one_token_to_compute():
    kv = make()
    content = list(range(32))
    admit(kv, 1, 2, units=32)
    run(kv, {1: Tokens(32, 1)}, [{1: 32}])
    kv.publish("r1", {"main": content})
    assert adopt(kv, "r2", content) == 16


def test_prefix_pages_make_room_tails_first():
    kv = make(pages=6)
    admit(kv, 1, units=48)
    run(kv, {1: Tokens(48, 1)}, [{1: 48}])
    content = list(range(48))
    kv.publish("r1", {"main": content})
    kv.release("r1")
    assert kv.reserve("r2", ("main",), 80), "five pages: two of the cache's three go"
    assert len(kv.cache) == 1
    kv.release("r2")
    admit(kv, 3, units=48)
    assert adopt(kv, "r3", content) == 16
    assert not kv.reserve("r4", ("main",), 64), "a page in use is not taken away"
    kv.release("r3")
    kv.cache.clear()
    assert kv.pages.free == 6


def test_what_nobody_holds_is_counted_as_owners_come_and_go():
    kv = make(pages=20)
    content = list(range(64))
    admit(kv, 1, units=65)
    run(kv, {1: Tokens(64, 1)}, [{1: 64}])
    kv.publish("r1", {"main": content})
    assert kv.cache.evictable() == 0
    admit(kv, 2, units=65)
    assert adopt(kv, "r2", [*content[:40], *content]) == 32
    kv.release("r1")
    assert kv.cache.evictable() == 2, "the two pages that were adopted have a holder"
    assert kv.free == 20 - 2 - 3
    kv.release("r2")
    assert (kv.cache.evictable(), kv.free) == (4, 20)


def test_a_page_whose_followers_are_held_by_another_can_be_had():
    """Two compute the same beginning side by side; the first one's pages are kept, and the second's that follow."""
    kv = make(pages=8)
    content = list(range(64))
    admit(kv, 1, 2, units=64)
    run(kv, {1: Tokens(64, 1)}, [{1: 32}])
    run(kv, {2: Tokens(64, 1)}, [{2: 64}])
    kv.publish("r1", {"main": content[:32]})
    kv.publish("r2", {"main": content})
    kv.release("r1")
    assert (kv.pages.free, kv.cache.evictable(), kv.free) == (2, 2, 4)
    assert kv.reserve("r3", ("main",), 48), "one page more than are free"
    assert len(kv.cache) == 0, "what followed would never be found again"
    kv.release("r3")
    kv.release("r2")
    assert kv.pages.free == 8


def test_keys_tell_apart_what_differs():
    image = np.zeros((2, 8), np.uint8)
    stem = [1, 2, 3, 4]
    keys = [
        list(page_keys([*stem, 5, 6, 7, 8], 4, "main")),
        list(page_keys([*stem, 5, 6, 7, 9], 4, "main")),
        list(page_keys([*stem, 5, 6, 8, 7], 4, "main")),
        list(page_keys([0, *stem[1:], 5, 6, 7, 8], 4, "main")),
        list(page_keys([*stem, *[media_key(image)] * 4], 4, "main")),
        list(page_keys([*stem, *[media_key(image.astype(np.int8))] * 4], 4, "main")),
        list(page_keys([*stem, *[media_key(image.reshape(4, 4))] * 4], 4, "main")),
        list(page_keys([*stem, *[media_key(image + np.eye(2, 8, dtype=np.uint8))] * 4], 4, "main")),
        list(page_keys([*stem, 5, 6, 7, 8], 4, "other")),
    ]
    assert len({tuple(key) for key in keys}) == len({key[1] for key in keys}) == len(keys)
    assert keys[0][0] == keys[1][0] == keys[4][0], "the same beginning"
    assert all(len(key) == len("main") + 32 for one in keys[:-1] for key in one), "the whole hash"


@pytest.mark.parametrize("options", [{}, {"window": 12, "sinks": 2, "step": 8, "page_size": 4}])
def test_offload_and_reload_give_the_same_bits(options):
    tokens = Tokens(60, 1)
    kv = make(**options)
    admit(kv, 1, 2, units=60)
    run(kv, {1: tokens}, [{1: u} for u in chunks(37, 8)])
    saved = kv.save("r1")
    want = run(kv, {1: tokens}, [{1: u} for u in chunks(23, 8)], done={1: 37})[1]
    kv.release("r1")
    run(kv, {2: Tokens(60, 2)}, [{2: u} for u in chunks(60, 8)])
    admit(kv, 3, units=60)
    kv.restore("r3", saved)
    got = run(kv, {3: tokens}, [{3: u} for u in chunks(23, 8)], done={3: 37})[3]
    assert torch.equal(got, want)
    assert kv.reserve("small", ("main",), 16)
    if not options:
        with pytest.raises(ValueError, match="reserved room"):
            kv.restore("small", saved)
