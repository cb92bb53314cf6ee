"""PagedKV against attention over plain tensors, and its accounting."""

from __future__ import annotations

import itertools
import threading
from collections import deque

import numpy as np
import pytest
import torch

from serving.errors import SetupError
from serving.resources.kv_step import Pool
from serving.resources.tests.batches import batch
from serving.resources.tests.tokens import Tokens, admit, chunks, make, run

BOTH = ("cond", "uncond")


@pytest.mark.parametrize("numerics", ["fast", "invariant"])
@pytest.mark.parametrize("page_size", [16, 96, 5])
def test_equals_attention_from_its_definition(numerics, page_size):
    kv = make(numerics=numerics, page_size=page_size, pages=60)
    tokens = {1: Tokens(70, 1), 2: Tokens(33, 2), 3: Tokens(70, 3)}
    admit(kv, 1, 2, 3)
    schedule = [{1: 30, 2: 1, 3: 17}] + [{3: 1, 1: 1, 2: 1}] * 32 + [{1: 8, 3: 21}]
    got = run(kv, tokens, schedule, padding=3)
    for slot, want in tokens.items():
        torch.testing.assert_close(got[slot], want.naive(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("page_size", [16, 96])
@pytest.mark.parametrize("dim", [8, 64])
def test_invariant_bits_do_not_depend_on_chunks_batch_or_padding(page_size, dim):
    tokens = {slot: Tokens(61, slot, dim=dim) for slot in (1, 2, 3)}

    def outputs(schedule, *slots, padding=0):
        kv = make(numerics="invariant", page_size=page_size, head_dim=dim)
        admit(kv, *slots)
        return run(kv, {s: tokens[s] for s in slots}, schedule, padding=padding)

    whole = {s: outputs([{s: 61}], s)[s] for s in tokens}
    for size in (1, 2, 3, 15, 16, 17, 40):
        alone = outputs([{2: u} for u in chunks(61, size)], 2)[2]
        assert torch.equal(alone, whole[2]), f"chunks of {size}"
    mixed = outputs([{3: 20, 1: 1}, {1: 40, 2: 9, 3: 1}] + [{2: 1, 3: 1, 1: 1}] * 20 + [{2: 32, 3: 20}], 1, 2, 3)
    padded = outputs([{1: 7, 2: 30, 3: 61}, {2: 31, 1: 54}], 1, 2, 3, padding=5)
    for slot, want in whole.items():
        assert torch.equal(mixed[slot], want)
        assert torch.equal(padded[slot], want)


def test_invariant_reading_does_not_depend_on_the_other_queries_or_the_page():
    kv = make(numerics="invariant", page_size=37, max_len=37)
    admit(kv, 1, 2, 3, units=37)
    for slot in (1, 2, 3):
        step = kv.plan(batch([slot], [37]), write=True)
        made = Tokens(37, 1)
        step.write(0, made.k, made.v)
    q = Tokens(24, 9).q
    together = kv.plan(batch([2, 1], [20, 4]), write=False).read(0, q)
    one_by_one = [kv.plan(batch([2], [1]), write=False).read(0, q[i : i + 1]) for i in range(20)]
    assert torch.equal(together[:20], torch.cat(one_by_one))
    elsewhere = kv.plan(batch([3], [20]), write=False).read(0, q[:20])
    assert torch.equal(together[:20], elsewhere)


def test_fast_depends_on_the_batch_only_within_rounding():
    tokens = {1: Tokens(40, 1), 2: Tokens(40, 2)}
    kv = make(page_size=96)
    admit(kv, 1, 2)
    got = run(kv, tokens, [{2: 1, 1: 1}] * 40)
    torch.testing.assert_close(got[1], tokens[1].naive(), atol=2e-6, rtol=1e-5)


def test_neighbouring_pages_are_read_in_place(monkeypatch):
    kv = make(page_size=96)
    admit(kv, 1, 2, 3)
    tokens = {s: Tokens(5, s) for s in (1, 2, 3)}
    run(kv, tokens, [{1: 4, 2: 3, 3: 4}])
    asked = []
    sdpa = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        "torch.nn.functional.scaled_dot_product_attention",
        lambda q, k, v, **kw: asked.append(k) or sdpa(q, k, v, **kw),
    )
    b = batch([3, 1, 2], [1, 1, 1])
    kv.plan(b, write=True).attend(0, torch.randn(3, 4, 8), torch.randn(3, 2, 8), torch.randn(3, 2, 8))
    assert len(asked) == 1
    assert asked[0].untyped_storage().data_ptr() == kv.pool.k.untyped_storage().data_ptr()


def test_lanes_are_packed_row_by_row_and_last_finds_them():
    kv = make(lanes=BOTH)
    admit(kv, 1, units=10, lanes=BOTH)
    assert kv.reserve("r2", ("cond",), 10)
    kv.bind(2, "r2")
    b = batch([1, 2], [3, 2], [BOTH, ("cond",)], size=3, total=12)
    step = kv.plan(b, write=True)
    assert step.positions.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 0, 0, 0, 0]
    assert step.token_rows.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 2, 2]
    assert step.last.tolist() == [2, 7, 0]
    assert step.last_second.tolist() == [5, 7, 0]
    step = kv.plan(batch([1, 2], [1, 1], [BOTH, ("cond",)]), write=True)
    assert step.positions.tolist() == [3, 3, 2]
    assert (step.last.tolist(), step.last_second.tolist()) == ([0, 2], [1, 2])
    step = kv.plan(batch([1], [1], [BOTH]), write=True)
    assert (step.last.tolist(), step.last_second.tolist()) == ([0], [1])


def test_lanes_are_separate_sequences():
    kv = make(lanes=BOTH)
    admit(kv, 1, units=10, lanes=BOTH)
    one, two = Tokens(6, 1), Tokens(6, 2)
    step = kv.plan(batch([1], [6], [BOTH]), write=True)
    got = step.attend(0, *(torch.cat([getattr(one, n), getattr(two, n)]) for n in "qkv"))
    torch.testing.assert_close(got, torch.cat([one.naive(), two.naive()]), atol=2e-6, rtol=1e-5)


def test_a_single_cache_serves_every_lane_of_the_reader():
    kv = make(max_len=16)
    admit(kv, 1, units=16)
    made = Tokens(16, 3)
    kv.plan(batch([1], [16]), write=True).write(0, made.k, made.v)
    q = torch.randn(1, 4, 8)
    got = kv.plan(batch([1], [1], [BOTH]), write=False).read(0, torch.cat([q, q]))
    assert torch.equal(got[0], got[1])
    assert got.any()


def test_scores_are_the_scaled_products_of_the_chosen_heads():
    kv = make(page_size=5, max_len=20)
    admit(kv, 1, 2, units=12)
    made = {1: Tokens(12, 1), 2: Tokens(7, 2)}
    for slot, tokens in made.items():
        kv.plan(batch([slot], [len(tokens.k)]), write=True).write(0, tokens.k, tokens.v)
    q = torch.randn(3, 4, 8)
    got = kv.plan(batch([1, 2], [1, 2]), write=False).scores(0, q, [3, 0])
    assert got.shape == (2, 3, 12)
    want = torch.einsum("td,kd->tk", q[1:, 3], made[2].k[:, 1]) * 8**-0.5
    torch.testing.assert_close(got[0, 1:, :7], want)
    torch.testing.assert_close(got[1, 0], made[1].k[:, 0] @ q[0, 0] * 8**-0.5)
    assert (got[:, 1:, 7:] == float("-inf")).all()


def test_rollback_and_truncate_leave_no_trace():
    tokens = Tokens(30, 1)
    kv = make()
    admit(kv, 1)
    b = batch([1], [20])
    kv.plan(b, write=True).attend(0, tokens.q[:20], tokens.k[:20], tokens.v[:20])
    kv.commit(b, np.array([12]))
    assert kv.stored("r1") == 12
    kv.truncate("r1", 10)
    b = batch([1], [20])
    got = kv.plan(b, write=True).attend(0, tokens.q[10:], tokens.k[10:], tokens.v[10:])
    torch.testing.assert_close(got, tokens.naive()[10:], atol=2e-6, rtol=1e-5)


def test_a_step_ahead_may_pass_the_room_but_not_keep_it():
    kv = make(max_len=16)
    admit(kv, 1, units=16)
    b1, b2, b3 = batch([1], [16]), batch([1], [1]), batch([1], [1])
    kv.plan(b1, write=True)
    step = kv.plan(b2, write=True)
    step.attend(0, *(torch.ones(1, h, 8) for h in (4, 2, 2)))
    assert not kv.pool.k[0, 1:].any(), "a void row writes to the sink"
    kv.commit(b1, b1.units)
    kv.commit(b2, np.array([0]))
    assert kv.stored("r1") == 16
    kv.plan(b3, write=True)
    with pytest.raises(ValueError, match="kept more"):
        kv.commit(b3, b3.units)
    with pytest.raises(ValueError, match="writes more"):
        kv.plan(batch([1], [1]), write=True)


def test_what_a_step_planned_stays_while_the_next_is_planned():
    kv = make()
    admit(kv, 1)
    sets = [{}, {}]
    first = kv.plan(batch([1], [1], buffers=sets[0]), write=True)
    second = kv.plan(batch([1], [1], buffers=sets[1]), write=True)
    assert (first.positions.tolist(), second.positions.tolist()) == ([0], [1])
    assert (first.layout.lengths.tolist(), second.layout.lengths.tolist()) == ([1], [2])
    third = kv.plan(batch([1], [1], buffers=sets[0]), write=True)
    assert third.block.data_ptr() == first.block.data_ptr(), "the buffers of a bucket are static"


def test_reserve_takes_all_or_nothing_and_grows():
    kv = make(pages=6, lanes=BOTH)
    assert kv.need(BOTH, 40) == 6
    assert kv.need(BOTH, 97) == 7
    assert kv.reserve("a", BOTH, 20)
    assert not kv.reserve("b", BOTH, 17)
    assert kv.pages.free == 2
    assert kv.reserve("b", BOTH, 16)
    kv.release("b")
    kv.release("b")
    assert kv.pages.free == 2
    kv.bind(1, "a")
    kv.plan(batch([1], [20], [BOTH]), write=True)
    assert kv.reserve("a", BOTH, 12)
    assert kv.pages.free == 2, "the last pages have room for 12 more"
    assert kv.reserve("a", BOTH, 13)
    assert not kv.reserve("a", BOTH, 29)
    kv.release("a")
    assert kv.pages.free == 6
    assert not kv.seq.any()


def test_a_slot_finds_its_latest_owner_and_two_slots_may_share_one():
    kv = make()
    admit(kv, 1)
    kv.bind(2, "r1")
    kv.plan(batch([1], [5]), write=True)
    assert kv.plan(batch([2], [1]), write=True).positions.tolist() == [5]
    assert kv.reserve("other", ("main",), 3)
    kv.bind(1, "other")
    kv.release("r1")
    assert kv.plan(batch([1], [1]), write=True).positions.tolist() == [0]


@pytest.mark.parametrize("numerics", ["fast", "invariant"])
def test_pages_of_a_former_owner_cannot_poison_the_next(numerics):
    kv = make(page_size=96, slots=3, numerics=numerics)
    admit(kv, 1, 2)
    bad = torch.full((80, 2, 8), float("nan"))
    step = kv.plan(batch([1], [80]), write=True)
    for layer in range(2):
        step.write(layer, bad, bad)
    kv.release("r1")
    admit(kv, 3)
    tokens = {2: Tokens(9, 2), 3: Tokens(4, 3)}
    got = run(kv, tokens, [{2: 6, 3: 1}] + [{2: 1, 3: 1}] * 3)
    torch.testing.assert_close(got[3], tokens[3].naive(), atol=2e-6, rtol=1e-5)


def test_refuses_what_cannot_work():
    with pytest.raises(SetupError, match="at least 1"):
        make(pages=0)
    with pytest.raises(SetupError, match='Did you mean "sdpa"'):
        make(attention="spda")
    with pytest.raises(SetupError, match="not invariant"):
        make(attention="sdpa", numerics="invariant")
    kv = make(lanes=BOTH)
    admit(kv, 1, lanes=BOTH)
    with pytest.raises(KeyError):
        kv.plan(batch([1], [1], [("neither",)]), write=True)


def test_sequences_are_a_pool_too():
    kv = make(owners=2)
    names = [f"s{i}" for i in range(3)]
    assert list(itertools.compress(names, (kv.reserve(name, ("main",), 1) for name in names))) == names[:2]
    kv.release("s0")
    assert kv.reserve("s2", ("main",), 1)


def test_pages_are_zeroed_before_anyone_else_goes_on():
    """A lane and the engine's thread may both come to it: what one has taken to zero, the other waits for."""

    class Slow:
        begun, go = threading.Event(), threading.Event()

        def __setitem__(self, at, value):
            self.begun.set()
            assert self.go.wait(10)

    pool = Pool(Slow(), Slow(), torch.zeros(1, 1), None, deque([3]))
    lane, engine = (threading.Thread(target=pool.scrub) for _ in range(2))
    lane.start()
    assert Slow.begun.wait(10)
    engine.start()
    engine.join(0.1)
    assert engine.is_alive()
    Slow.go.set()
    for thread in (lane, engine):
        thread.join(10)
        assert not thread.is_alive()
