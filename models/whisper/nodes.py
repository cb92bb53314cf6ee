"""The nodes: windows to cross-attention keys, token after token, and scores that tell when they were said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.whisper.config import WhisperConfig
from models.whisper.modules import Whisper
from models.whisper.quick import QuickEncoder
from models.whisper.rules import Rules, RuleTables
from models.whisper.tokenizer import Tokenizer
from serving.core.contract import Batch, Node, Offer, Packed, Row, Settled, Verdict
from serving.resources import Sampler, SamplingParams

PREFILL, DECODE = "prefill", Offer(("decode",), repeats=True)


@dataclass(frozen=True, slots=True)
class Heard:
    """What the encoder is given of a window: its first `width` mel frames."""

    width: int


@dataclass(frozen=True, slots=True)
class Attempt(Heard):
    """A window's knobs: how to decode it."""

    rules: Rules
    limit: int  # most tokens to choose
    start: int = 0  # where in the prompt the transcript starts
    temperature: float = 0.0
    ordinal: int = 0  # of the request's attempts: no two draw the same numbers


def _ready(n: int) -> Packed:
    return Packed(np.zeros(n, np.int64), np.ones(n, np.int64))


class Encoder(Node):
    """Log-mel windows in; every decoder layer's cross-attention keys and values stored; then one item, "ready".

    A window is {"mel" [n_mels, width], "sound"}: how many of its frames are sound; the others are 0.
    """

    name = "encoder"
    writes = ("cross_kv",)
    preempt = "offload"

    def __init__(self, config: WhisperConfig, net: Whisper, windows: int, quick: QuickEncoder | None = None) -> None:
        self.config, self.net, self.quick = config, net, quick
        self.budget = float(windows * config.n_audio_ctx)

    def begin(self, row: Row) -> None:
        positions = row.knobs.width // 2
        row.state = Offer(("window", positions), positions, positions, take=("window",))

    def offer(self, row: Row) -> Offer | None:
        return row.state if row.chunks["window"] is not None else None

    def stage(self, b: Batch) -> None:
        if not b.ins:
            return
        windows = [b.ins["window"].row(i) for i in range(b.n)]
        width = windows[0]["mel"].shape[-1]
        mel = b.buffer("mel", (b.size, self.config.n_mels, width), torch.float32)
        sound = b.buffer("sound", (b.size,), torch.int64)
        for i, window in enumerate(windows):
            mel[i], sound[i] = torch.as_tensor(window["mel"][0]), int(window["sound"][0])

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        for layer, k, v in self.net.decoder.cross_keys(self._features(b)):
            b.use["cross_kv"].write(layer, k, v)
        return {}

    def _features(self, b: Batch) -> Tensor:
        """[size * positions, D]"""
        if self.quick is None:
            return self.net.encoder(b.buffers["mel"]).flatten(0, 1)
        sound = b.buffers["sound"].tolist()  # the quick encoder is for a CPU, where that is no wait
        return torch.cat([self.quick(mel, frames) for mel, frames in zip(b.buffers["mel"], sound, strict=True)])

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        return Settled(np.full(b.n, Verdict.DONE), {"ready": _ready(b.n)})


class Decoder(Node):
    """The prompt, then a token a step until the end token or the limit; the end token is an item too.

    Items are {"id", "logprob", "no_speech"}: the token, its log-probability among those allowed, and how likely
    the window holds no speech, as the prompt's step saw it.
    """

    name = "decoder"
    reads = ("cross_kv",)
    writes = ("decoder_kv", "sampler")
    preempt = "offload"
    tables = ("last", "silence", "left", *(f"rules.{name}" for name in RuleTables.TABLES))

    def __init__(
        self,
        config: WhisperConfig,
        net: Whisper,
        tokenizer: Tokenizer,
        sampler: Sampler,
        rows: int,
        device: str,
        head: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.net, self.sampler = net.decoder, sampler
        self.head = head or net.decoder.head
        self.eot, self.no_speech = tokenizer.eot, tokenizer.no_speech
        self.rules = RuleTables(tokenizer, rows, config.n_vocab, device)
        self.last = torch.zeros(rows + 1, dtype=torch.int64, device=device)
        self.silence = torch.zeros(rows + 1, device=device)
        self.left = np.zeros(rows + 1, np.int64)

    def begin(self, row: Row) -> None:
        attempt: Attempt = row.knobs
        row.state = attempt.start
        self.rules.set(row.slot, attempt.rules)
        self.left[row.slot] = attempt.limit
        params = SamplingParams(temperature=attempt.temperature)
        self.sampler.set(row.slot, params, row.seed + attempt.ordinal)

    def offer(self, row: Row) -> Offer | None:
        if row.ended["prompt"]:
            return DECODE
        prompt = row.chunks["prompt"]
        if row.chunks["ready"] is None or prompt is None:
            return None
        return Offer((PREFILL,), prompt.stop, prompt.stop, take=("prompt", "ready"))

    def stage(self, b: Batch) -> None:
        if not b.ins:
            return
        ids = b.buffer("ids", (b.total,), torch.int64)
        ids[: int(b.units.sum())] = torch.as_tensor(b.ins["prompt"].values)
        starts = np.cumsum(b.units) - b.units + [row.state for row in b.rows]
        b.buffer("starts", (b.size,), torch.int64)[: b.n] = torch.from_numpy(starts)

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        kv, prefill = b.use["decoder_kv"], "prompt" in b.ins
        ids = b.buffers["ids"] if prefill else self.last[b.slots]
        hidden = self.net(ids, kv.positions, kv.attend, b.use["cross_kv"].read)
        if prefill:
            first = self.head(hidden[b.buffers["starts"]]).float()
            self.silence[b.slots] = first.softmax(-1)[:, self.no_speech]
            hidden = hidden[kv.last]
        logits = self.rules.filter(self.head(hidden), b.slots)
        tokens = b.use["sampler"](logits)
        logprobs = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        self.last[b.slots] = tokens
        self.rules.append(b.slots, tokens)
        return {"id": tokens, "logprob": logprobs, "no_speech": self.silence[b.slots]}

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        self.left[b.index] -= 1
        done = (out["id"][: b.n] == self.eot) | (self.left[b.index] <= 0)
        items = {name: out[name][: b.n] for name in ("id", "logprob", "no_speech")}
        return Settled(Verdict.until(done), {"tokens": Packed(items, np.ones(b.n, np.int64))})


class Aligner(Node):
    """A whole transcript in one step. Items, one a token: {"scores" [heads, n_audio_ctx], "next"}.

    `scores` are the alignment heads' cross-attention logits; `next` is how likely the decoder finds the token that
    follows among the text tokens.
    """

    name = "aligner"
    reads = ("cross_kv",)
    writes = ("align_kv",)
    preempt = "offload"

    def __init__(self, config: WhisperConfig, net: Whisper, eot: int) -> None:
        self.net, self.eot = net.decoder, eot
        layers = sorted({layer for layer, _ in config.heads})
        self.heads = {layer: [h for i, h in config.heads if i == layer] for layer in layers}

    def offer(self, row: Row) -> Offer | None:
        text = row.chunks["text"]
        if row.chunks["ready"] is None or text is None:
            return None
        return Offer(("align",), text.stop, text.stop, take=("text", "ready"))

    def stage(self, b: Batch) -> None:
        ids = b.buffer("ids", (b.total,), torch.int64)
        ids[: int(b.units.sum())] = torch.as_tensor(b.ins["text"].values)

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        kv, cross = b.use["align_kv"], b.use["cross_kv"]
        found: list[Tensor] = []

        def read(layer: int, q: Tensor) -> Tensor:
            if layer in self.heads:
                found.append(cross.scores(layer, q, self.heads[layer]))
            return cross.read(layer, q)

        ids = b.buffers["ids"]
        logits = self.net.head(self.net(ids, kv.positions, kv.attend, read)).float()
        chances = logits[:, : self.eot].softmax(-1)
        following = ids.roll(-1).clamp(max=self.eot - 1)
        return {
            "scores": torch.cat(found).transpose(0, 1),  # [T, heads, n_audio_ctx]
            "next": chances.gather(1, following[:, None])[:, 0],
        }

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        real = int(b.units.sum())
        items = {name: out[name][:real] for name in ("scores", "next")}
        return Settled(np.full(b.n, Verdict.DONE), {"items": Packed(items, b.units.copy())})
