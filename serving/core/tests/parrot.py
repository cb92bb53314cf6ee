"""A port whose every token depends on all that its pools should hold, in whole numbers, and what it says by hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, reduce

import numpy as np
import torch

from serving.core.contract import Edge, Need, Node, Offer, Packed, Piece, Prefix, Settled, Verdict
from serving.core.streams import Each, Frames, Ramp
from serving.core.tests.kit import Paper
from serving.resources import PagedKV, Sampler, SamplingParams, StateSlots, draws, sampling

VOCAB, PAGE, LONGEST = 97, 4, 40
POISON = -1


@dataclass(frozen=True)
class Part:
    """A prompt, then so many tokens; `fails` when that many are left."""

    prompt: tuple[int, ...]
    until: int
    fails: int = POISON


def mixed(state, token):
    return (state * 31 + token) % 10007


def weighed(tokens, first=0):
    """What the pages hold of these tokens."""
    return [token * (position % 7 + 1) for position, token in enumerate(tokens, first)]


class Parrot(Node):
    """Prefill in parts, then a loop that runs ahead."""

    name, writes, budget = "parrot", ("kv", "state", "sampler"), 6
    tables = ("last", "left", "fails")
    LOOP = Offer(("loop",), repeats=True)

    def __init__(self, sampler, rows, preempt, hybrid):
        self.sampler, self.preempt = sampler, preempt
        self.writes = ("kv", "state", "sampler") if hybrid else ("kv", "sampler")
        self.last, self.left, self.fails = (np.zeros(rows + 1, np.int64) for _ in range(3))

    def begin(self, row):
        self.left[row.slot], self.fails[row.slot] = row.knobs.until, row.knobs.fails
        self.sampler.set(row.slot, SamplingParams(temperature=1.0), seed=row.seed)

    def offer(self, row):
        chunk = row.chunks["prompt"]
        if chunk is not None:
            return Offer(("loop",), chunk.stop - chunk.fresh, 1, take=("prompt",))
        return self.LOOP if row.ended["prompt"] else None

    def launch(self, b):
        kv, state = b.use["kv"], b.use["state"]["h"] if "state" in b.use else dict.fromkeys(b.index.tolist(), 0)
        drawn = b.use["sampler"](torch.zeros(b.size, VOCAB)).tolist()
        given = [
            b.ins["prompt"].row(i) if b.ins and b.ins["prompt"].lengths[i] else [self.last[slot]]
            for i, slot in enumerate(b.index)
        ]
        first = kv.layout.first.tolist()
        x = torch.tensor([x for tokens, at in zip(given, first, strict=True) for x in weighed(tokens, at)])
        x = x.float()[:, None, None]
        kv.write(0, x, x)
        for i, slot in enumerate(b.index.tolist()):
            for token in given[i] if "state" in b.use else ():
                state[slot] = mixed(int(state[slot]), int(token))
            pages = kv.layout.table[kv.layout.seqs[i]].repeat(PAGE)
            held = kv.pool.k[0, pages, 0, np.arange(len(pages)) % PAGE, 0][: kv.layout.lengths[i]]
            drawn[i] = (int(held.sum()) + 3 * int(state[slot]) + drawn[i]) % VOCAB + 1
        if (self.left[b.index] == self.fails[b.index]).any():
            raise ValueError("poison")
        self.last[b.index] = drawn[: b.n]
        return {"token": torch.tensor(drawn[: b.n])}

    def settle(self, b, out):
        spoke = np.ones(b.n, bool)
        if b.taken:
            spoke = np.array([chunk is None or chunk.final for chunk in b.taken["prompt"]])
        self.left[b.index] -= spoke
        done = spoke & (self.left[b.index] <= 0)
        return Settled(Verdict.until(done), {"token": Packed(out["token"][spoke], spoke.astype(int))})


class Voice(Node):
    """Windows of what was said, passed on."""

    name, preempt = "voice", "offload"

    def offer(self, row):
        return None if row.chunks["x"] is None else Offer(("window",), take=("x",))

    def launch(self, b):
        return {}

    def settle(self, b, out):
        chunks = b.chunks("x")
        parts = [b.ins["x"].row(i)[c.fresh - c.start : c.stop - c.start] for i, c in enumerate(chunks)]
        values = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        lengths = np.array([c.stop - c.fresh for c in chunks])
        verdicts = np.where([c.final for c in chunks], Verdict.DONE, Verdict.WAIT)
        return Settled(verdicts, {"y": Packed(values, lengths)})


class Ear(Node):
    """Adds up what its client sends, three numbers at a time, and says the sum so far."""

    name, writes, preempt = "ear", ("heard",), "offload"

    def offer(self, row):
        return None if row.chunks["sound"] is None else Offer(("ear",), take=("sound",))

    def launch(self, b):
        sums, index = b.use["heard"]["sum"], b.slots
        for i, slot in enumerate(b.index.tolist()):
            if b.ins["sound"].lengths[i]:
                sums[slot] += int(sum(b.ins["sound"].row(i)))
        return {"sum": sums[index]}

    def settle(self, b, out):
        verdicts = np.where([c.final for c in b.chunks("sound")], Verdict.DONE, Verdict.WAIT)
        return Settled(verdicts, {"sum": Packed(out["sum"][: b.n], np.ones(b.n, int))})


EDGES = (
    Edge("parrot.token", "voice.x", Ramp((2, 3), 5, context=1, lookahead=1), limit=7),
    Edge("voice.y", "client.out", Each(), limit=9),
    Edge("client.sound", "ear.sound", Frames(3)),
    Edge("ear.sum", "client.sums", Each()),
)


def parts(job):
    if "parts" not in job.inputs:
        yield Piece("listen", {}, None)
    for part in job.inputs.get("parts", ()):
        prompt = np.array(part.prompt)
        need = Need(len(prompt) + part.until, expected=len(prompt) + 1)
        prefix = Prefix("parrot", {"main": part.prompt}, ("prompt",), "token", marks=(9,))
        yield Piece("speak", {"parrot.prompt": Packed.one(prompt)}, part, {"kv": need}, prefix=prefix)


def port(rows, pages, preempt="offload", hybrid=True):
    sampler = Sampler(slots=rows, vocab=VOCAB)
    kv = PagedKV(layers=1, kv_heads=1, head_dim=1, page_size=PAGE, pages=pages, slots=rows, max_len=LONGEST)
    state = {"h": ((), torch.int64)}
    resources = {
        "kv": kv,
        "sampler": sampler,
        "state": StateSlots(slots=rows, state=state, snapshots=64, rollback=True),
        "heard": StateSlots(slots=rows, state={"sum": ((), torch.int64)}, rollback=True),
    }
    walks = {"speak": ("parrot", "voice"), "listen": ("ear",)}
    return Paper((Parrot(sampler, rows, preempt, hybrid), Voice(), Ear()), EDGES, walks, resources, parts, in_flight=2)


@cache
def drawn(seed, position):
    u = draws.uniform(draws.keys(seed, 1), np.array([position]))
    return int(sampling.draw(torch.zeros(1, VOCAB), torch.from_numpy(u))[0])


def spoken(part, seed, hybrid=True):
    """What a part says, from the whole of what went before at every token."""
    tokens, said = list(part.prompt), []
    for _ in range(part.until):
        state = reduce(mixed, tokens, 0) if hybrid else 0
        said.append((sum(weighed(tokens)) + 3 * state + drawn(seed, len(tokens))) % VOCAB + 1)
        tokens.append(said[-1])
    return said


def heard(sound):
    """The sums after every three numbers, and after the rest."""
    sums = [sum(sound[: at + 3]) for at in range(0, len(sound), 3)]
    return sums if len(sound) % 3 else [*sums, sum(sound)]
