"""The toy's nodes: a guided language model, a stateful codec, a denoise loop, a loop clocked by its input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.toy.config import ToyConfig
from models.toy.modules import Networks
from serving.core.contract import Batch, Node, Offer, Packed, Row, Settled, Verdict
from serving.resources import Sampler, SamplingParams

BOTH = ("cond", "uncond")
COND = ("cond",)
DECODE = {lanes: Offer(("lm",), lanes=lanes, repeats=True) for lanes in (BOTH, COND)}


class LM(Node):
    """Prompt tokens in, sound tokens out; prefill and decode share a step, one- and two-lane rows share a batch."""

    name = "lm"
    writes = ("kv", "sampler")
    buckets = ((4, 8), (8, 16), (8, 128))
    tables = ("last", "weight", "left", "eos", "prompt")

    def __init__(
        self, c: ToyConfig, net: Networks, sampler: Sampler, rows: int, budget: float, preempt: str = "offload"
    ) -> None:
        self.c, self.net, self.sampler, self.budget, self.preempt = c, net.speaker, sampler, budget, preempt
        self.last = torch.zeros(rows + 1, dtype=torch.int64)
        self.weight = torch.zeros(rows + 1)
        self.left = np.zeros(rows + 1, np.int64)
        self.eos = np.zeros(rows + 1, np.int64)
        self.prompt = np.zeros(rows + 1, np.int64)  # its length, once all of it is computed

    def begin(self, row: Row) -> None:
        k = row.knobs
        self.prompt[row.slot] = self.c.max_tokens
        row.state = BOTH if k.cfg_weight > 0 else COND
        self.weight[row.slot] = k.cfg_weight
        self.left[row.slot] = k.max_new_tokens
        self.eos[row.slot] = -1 if k.ignore_eos else self.c.eos
        self.sampler.set(row.slot, SamplingParams(temperature=k.temperature, top_k=k.top_k), row.seed)

    def offer(self, row: Row) -> Offer | None:
        chunk = row.chunks["prompt"]
        if chunk is not None:
            return Offer(("lm",), chunk.stop - chunk.fresh, 1, row.state, take=("prompt",))
        return DECODE[row.state] if row.ended["prompt"] else None

    def stage(self, b: Batch) -> None:
        ids = b.buffer("ids", (b.total,), torch.int64)
        ids.fill_(-1)  # -1: the row's last token
        if not b.ins:
            return
        prompts, start = b.ins["prompt"], 0
        for i, (units, lanes) in enumerate(zip(b.units.tolist(), b.lanes, strict=True)):
            chunk = b.taken["prompt"][i]
            if chunk is not None and units:
                given = torch.as_tensor(prompts.row(i))
                ids[start : start + units] = given
                said = torch.arange(chunk.fresh, chunk.stop) >= self.prompt[b.index[i]]
                ids[start + units : start + units * len(lanes)] = (given * said).repeat(len(lanes) - 1)
            start += units * len(lanes)

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        kv, staged = b.use["kv"], b.buffers["ids"]
        rows = b.slots[kv.token_rows]
        ids = torch.where(staged < 0, self.last[rows], staged)
        hidden = self.net(ids, kv.positions, kv.attend)
        cond, uncond = self.net.head(hidden[kv.last]), self.net.head(hidden[kv.last_second])
        logits = cond + self.weight[b.slots, None] * (cond - uncond)
        token = b.use["sampler"](logits)
        self.last[b.slots] = token
        return {"token": token, "logits": logits}

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        tokens = out["token"][: b.n]
        spoke = np.ones(b.n, bool)
        if b.taken:
            spoke = np.array([chunk is None or chunk.final for chunk in b.taken["prompt"]])
            whole = [(slot, c.stop) for slot, c in zip(b.index, b.taken["prompt"], strict=True) if c and c.final]
            for slot, stop in whole:
                self.prompt[slot] = stop
        self.left[b.index] -= spoke
        ended = spoke & (tokens == self.eos[b.index])
        done = ended | (spoke & (self.left[b.index] <= 0))
        emit = spoke & ~ended
        return Settled(Verdict.until(done), {"token": Packed(tokens[emit], emit.astype(np.int64))})


class Codec(Node):
    """Ramped windows of tokens to samples, the same whatever the windows: the filter state goes on."""

    name = "codec"
    writes = ("filter",)
    preempt = "offload"
    buckets = ((4, 32), (8, 64))
    compiles = ("net.excite",)
    BEFORE, AFTER, MOST = 2, 1, 8

    def __init__(self, c: ToyConfig, net: Networks) -> None:
        self.c, self.net = c, net.codec

    def offer(self, row: Row) -> Offer | None:
        chunk = row.chunks["tokens"]
        if chunk is None:
            return None
        units = max(1, chunk.stop - chunk.fresh)
        return Offer(("window",), units, units, take=("tokens",))

    def cost(self, units: np.ndarray) -> float:
        return float(len(units) * units.max())

    def stage(self, b: Batch) -> None:
        tokens = b.buffer("tokens", (b.size, self.BEFORE + self.MOST + self.AFTER), torch.int64)
        counts = b.buffer("counts", (b.size,), torch.int64)
        tokens.zero_()
        counts.zero_()
        for i, chunk in enumerate(b.chunks("tokens")):
            offset = self.BEFORE - (chunk.fresh - chunk.start)
            if chunk.seen > chunk.start:
                tokens[i, offset : offset + chunk.seen - chunk.start] = torch.as_tensor(b.ins["tokens"].row(i))
            counts[i] = chunk.stop - chunk.fresh

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        state = b.use["filter"]
        table, index = state["y"], b.slots
        excited = self.net.excite(b.buffers["tokens"]).flatten(1)  # [size, MOST * samples]
        pcm, states = self.net.filter(excited, table[index])
        samples = b.buffers["counts"] * self.c.samples
        last = states.gather(1, (samples - 1).clamp(min=0)[:, None])[:, 0]
        table[index] = torch.where(samples > 0, last, table[index])
        return {"pcm": pcm}

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        chunks = b.chunks("tokens")
        lengths = np.array([(chunk.stop - chunk.fresh) * self.c.samples for chunk in chunks], np.int64)
        pcm = np.concatenate([row[:length] for row, length in zip(out["pcm"], lengths, strict=False)])
        verdicts = np.where([chunk.final for chunk in chunks], Verdict.DONE, Verdict.WAIT)
        return Settled(verdicts, {"pcm": Packed(pcm, lengths)})


@dataclass(slots=True)
class Canvas:
    """Where a picture stands."""

    patches: int
    step: int = 0


class Denoise(Node):
    """Euler steps of a flow; rows at different steps share a batch, guided ones cost two lanes."""

    name = "denoise"
    tables, preempt = ("x", "text"), "offload"

    def __init__(self, c: ToyConfig, net: Networks, rows: int, patches: int) -> None:
        self.net, self.size = net.painter, c.patch * c.patch * 3
        self.x = torch.zeros(rows + 1, patches, self.size)
        self.text = torch.zeros(rows + 1, c.width)
        self.blank = torch.zeros(c.width)
        self.budget = 4.0 * patches

    def begin(self, row: Row) -> None:
        row.state = Canvas(row.knobs.patches)

    def offer(self, row: Row) -> Offer | None:
        s, k = row.state, row.knobs
        if row.chunks["noise"] is None and not row.ended["noise"]:
            return None
        lanes = BOTH if s.step < k.guidance_until * k.steps and k.guidance > 0 else COND
        take = ("noise", "text") if s.step == 0 else ()
        return Offer((s.patches,), s.patches, s.patches, lanes, take)

    def stage(self, b: Batch) -> None:
        for i, row in enumerate(b.rows):
            if b.taken and b.taken["noise"][i] is not None:
                self.x[row.slot, : row.state.patches] = b.ins["noise"].row(i)
                ids = torch.as_tensor(b.ins["text"].row(i))
                self.text[row.slot] = self.net.text(ids).mean(0) if len(ids) else self.blank
        steps = np.array([row.knobs.steps for row in b.rows], np.float32)
        at = np.array([row.state.step for row in b.rows], np.float32)
        weight = np.array(
            [r.knobs.guidance if len(lanes) == 2 else 0.0 for r, lanes in zip(b.rows, b.lanes, strict=True)]
        )
        numbers = b.buffer("numbers", (3, b.size), torch.float32)
        numbers[:, : b.n] = torch.from_numpy(np.stack([1 - at / steps, -1 / steps, weight]).astype(np.float32))

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        time, dt, weight = b.buffers["numbers"]
        patches = b.rows[0].state.patches
        x = self.x[b.slots, :patches]
        cond = self.net(x, time, self.text[b.slots])
        uncond = self.net(x, time, self.blank.expand(b.size, -1))
        x = x + dt[:, None, None] * (cond + weight[:, None, None] * (cond - uncond))
        self.x[b.slots, :patches] = x
        return {"x": x}

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        for row in b.rows:
            row.state.step += 1
        done = np.array([row.state.step >= row.knobs.steps for row in b.rows])
        return Settled(
            Verdict.until(done),
            {"picture": Packed(out["x"][: b.n][done], done.astype(np.int64))},
        )


class Listener(Node):
    """One token a frame of the client's sound; ends when the stream does. Its memory may be a session's."""

    name = "listener"
    writes = ("memory",)
    preempt = "offload"
    buckets = ((2, 2), (8, 8))
    compiles = ("net",)
    FRAME = Offer(("frame",), take=("audio",))

    def __init__(self, c: ToyConfig, net: Networks) -> None:
        self.c, self.net = c, net.listener

    def offer(self, row: Row) -> Offer | None:
        return self.FRAME if row.chunks["audio"] is not None else None

    def stage(self, b: Batch) -> None:
        frames = b.buffer("frames", (b.size, self.c.frame), torch.float32)
        heard = b.buffer("heard", (b.size,), torch.bool)
        frames.zero_()
        heard.zero_()
        for i, row in enumerate(b.rows):
            items = b.ins["audio"].row(i) if b.ins["audio"].lengths[i] else ()
            frames[i, : len(items)] = torch.as_tensor(items) * row.knobs.gain
            heard[i] = len(items) > 0

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        state = b.use["memory"]
        table, index = state["h"], b.slots
        logits, new = self.net(b.buffers["frames"], table[index])
        table[index] = torch.where(b.buffers["heard"][:, None], new, table[index])
        return {"token": logits.argmax(-1)}

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        chunks = b.chunks("audio")
        heard = np.array([chunk.stop > chunk.fresh for chunk in chunks])
        verdicts = np.where([chunk.final for chunk in chunks], Verdict.DONE, Verdict.WAIT)
        return Settled(verdicts, {"token": Packed(out["token"][: b.n][heard], heard.astype(np.int64))})
