"""Two hard ports on paper: a full-duplex loop clocked by the caller's frames, and a network that reads another's KV."""

import asyncio

import numpy as np
import torch

from serving.core.contract import Edge, Need, Node, Offer, Packed, Piece, Settled, Verdict
from serving.core.streams import Each, Frames, Whole
from serving.core.tests.kit import Paper, outputs, running, submit
from serving.resources import PagedKV, StateSlots

FRAME, SESSIONS = 4, 32


class Ears(Node):
    """Frames of samples to one feature each; the end of the call is passed on."""

    name = "ears"

    def offer(self, row):
        return None if row.chunks["audio"] is None else Offer(("frame",), take=("audio",))

    def launch(self, b):
        return {}

    def settle(self, b, out):
        heard = np.array([c.stop - c.fresh == FRAME for c in b.chunks("audio")])
        whole = b.ins["audio"].lengths == FRAME
        frames = [b.ins["audio"].row(i).sum() for i in np.flatnonzero(whole)]
        last = [c.final for c in b.chunks("audio")]
        verdicts = np.where(last, Verdict.DONE, Verdict.WAIT)
        return Settled(verdicts, {"frame": Packed(np.array(frames, np.float32), heard.astype(np.int64))})


class Mouth(Node):
    """A recurrent agent: state = state / 2 + frame, one sample out for each frame in; it ends when the frames do."""

    name, writes = "mouth", ("state",)

    def offer(self, row):
        return None if row.chunks["frame"] is None else Offer(("frame",), take=("frame",))

    def launch(self, b):
        table = b.use["state"]["h"]
        heard = torch.zeros(b.size)
        present = torch.from_numpy(b.ins["frame"].lengths > 0)
        if b.ins["frame"].values is not None:
            heard[: b.n][present] = torch.as_tensor(b.ins["frame"].values)
        table[b.slots] = torch.where(heard != 0, table[b.slots] / 2 + heard, table[b.slots])
        return {"pcm": table[b.slots]}

    def settle(self, b, out):
        spoke = b.ins["frame"].lengths
        last = [c.final for c in b.chunks("frame")]
        pcm = out["pcm"][: b.n][spoke > 0]
        return Settled(np.where(last, Verdict.DONE, Verdict.WAIT), {"pcm": Packed(pcm, spoke)})


async def test_thirty_two_calls_share_steps_and_each_hears_its_own_answer():
    edges = (
        Edge("client.audio_in", "ears.audio", Frames(FRAME)),
        Edge("ears.frame", "mouth.frame", Each()),
        Edge("mouth.pcm", "client.audio", Each(), rate=12.5),
    )
    state = StateSlots(slots=SESSIONS, state={"h": ((), torch.float32)})
    model = Paper([Ears(), Mouth()], edges, resources={"state": state}, pieces=lambda job: [Piece("all", {}, None)])

    async def call(engine, seed):
        samples = np.random.default_rng(seed).uniform(0.1, 1, 10 * FRAME + 3).astype(np.float32)
        handle = await submit(engine, live=True)
        for start in range(0, len(samples), 3):
            await handle.append("audio_in", Packed.one(samples[start : start + 3]))
        await handle.finish("audio_in")
        expected, h = [], np.float32(0)
        for frame in samples[: 10 * FRAME].reshape(10, FRAME):
            h = np.float32(h / 2 + frame.sum())
            expected.append(h)
        np.testing.assert_array_equal(await outputs(handle, "audio"), expected)

    async with running(model, rows=SESSIONS) as engine:
        await asyncio.gather(*(call(engine, seed) for seed in range(SESSIONS)))
        assert max(trace.rows for trace in engine.traces) > SESSIONS // 2


class Prefix(Node):
    """Writes keys and values of a prompt once."""

    name, writes = "prefix", ("kv",)

    def offer(self, row):
        chunk = row.chunks["x"]
        return chunk and Offer(("prefix",), chunk.stop, chunk.stop, take=("x",))

    def launch(self, b):
        x = torch.as_tensor(b.ins["x"].values)[:, None, :]
        b.use["kv"].write(0, x, 2 * x)
        return {}

    def settle(self, b, out):
        return Settled(np.full(b.n, Verdict.DONE), {"ready": Packed(np.ones(b.n), np.ones(b.n, np.int64))})


class Expert(Node):
    """Three flow steps over the other network's cache: action += attention(action) / 3."""

    name, reads, STEPS = "expert", ("kv",), 3

    def __init__(self, rows, width):
        self.action = torch.zeros(rows + 1, width)
        self.step = np.zeros(rows + 1, np.int64)

    def begin(self, row):
        self.action[row.slot], self.step[row.slot] = 1.0, 0

    def offer(self, row):
        if row.chunks["ready"] is not None:
            return Offer(("flow",), take=("ready",))
        return Offer(("flow",)) if row.ended["ready"] else None

    def launch(self, b):
        query = self.action[b.slots][:, None, :]
        self.action[b.slots] += b.use["kv"].read(0, query)[: b.size, 0] / self.STEPS
        return {"action": self.action[b.slots]}

    def settle(self, b, out):
        self.step[b.index] += 1
        done = self.step[b.index] >= self.STEPS
        emits = {"action": Packed(out["action"][: b.n][done], done.astype(np.int64))}
        return Settled(Verdict.until(done), emits)


async def test_a_network_reads_what_another_has_cached():
    width, lengths = 8, (5, 1, 16, 9, 30)
    kv = PagedKV(layers=1, kv_heads=1, head_dim=width, page_size=8, pages=40, slots=8, max_len=32)
    edges = (Edge("prefix.ready", "expert.ready", Whole()), Edge("expert.action", "client.action", Each()))
    prompts = [np.random.default_rng(n).standard_normal((n, width)).astype(np.float32) for n in lengths]

    def pieces(job):
        x = job.inputs["x"]
        yield Piece("all", {"prefix.x": Packed.one(x)}, None, needs={"kv": Need(len(x))})

    def naive(x):
        x, action = torch.from_numpy(x), torch.ones(width)
        for _ in range(3):
            action = action + torch.softmax(x @ action / width**0.5, 0) @ (2 * x) / 3
        return action.numpy()

    async with running(Paper([Prefix(), Expert(8, width)], edges, resources={"kv": kv}, pieces=pieces)) as engine:
        handles = [await submit(engine, {"x": x}) for x in prompts]
        found = await asyncio.gather(*(outputs(h, "action") for h in handles))
    for (action,), x in zip(found, prompts, strict=True):
        np.testing.assert_allclose(action, naive(x), atol=1e-5)
    assert kv.pages.free == kv.capacity
