"""The nodes up to speech tokens: a voice and a text to a prompt, the prompt to tokens, one a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.chatterbox.alignment import Alignment
from models.chatterbox.conditioning import Conditionals
from models.chatterbox.config import SPEAKER, SPEECH_TOKENS, START_SPEECH, STOP_SPEECH, T3Config
from models.chatterbox.request import GREEDY, SpeakKnobs
from models.chatterbox.t3 import T3, Attend, guide
from serving.core.contract import Batch, Node, Offer, Packed, Row, Settled, Verdict
from serving.resources import Sampler, SamplingParams

BOTH = ("cond", "uncond")
COND = ("cond",)
SILENCE = 4299  # the speech token of silence
DECODE = {lanes: Offer(("t3",), lanes=lanes, repeats=True) for lanes in (BOTH, COND)}


@dataclass(frozen=True, slots=True, eq=False)
class Utterance:
    """How one piece is spoken: what every node of its walk finds in `row.knobs`."""

    voice: Conditionals
    text: np.ndarray  # [S] text ids, with start and stop tokens where the model has them
    knobs: SpeakKnobs
    limit: int  # most speech tokens
    seed: int

    @property
    def lanes(self) -> tuple[str, ...]:
        """With guidance there is a second lane, which does not know the text."""
        return BOTH if self.weight > 0 else COND

    @property
    def weight(self) -> float:
        return 0.0 if "cfg_weight" in self.knobs.IGNORES else float(self.knobs.cfg_weight)

    @property
    def prompt(self) -> int:
        """Speech tokens of the voice's prompt."""
        return self.voice.t3.cond_prompt_speech_tokens.shape[1]

    def units(self, c: T3Config) -> int:
        """Tokens before the first that is chosen: conditioning, text, start of speech (twice but for Turbo)."""
        return c.prefix(self.prompt) + len(self.text) + (1 if c.turbo else 2)


class Conditioner(Node):
    """A voice and its emotion to the embeddings in front of the text; then the prompt's token ids, for T3.

    The ids of the conditioning's places are 0 and not read; its embeddings are left in the table `prefixes`
    [slots + 1, most, D], where T3 finds them.
    """

    name = "conditioner"

    def __init__(self, net: T3, prefixes: Tensor) -> None:
        self.net, self.prefixes = net, prefixes

    def offer(self, row: Row) -> Offer | None:
        chunk, utterance = row.chunks["text"], row.knobs
        return None if chunk is None else Offer(("conditioner", utterance.prompt), take=("text",))

    def stage(self, b: Batch) -> None:
        voices = [row.knobs.voice.t3 for row in b.rows]
        speaker = b.buffer("speaker", (b.size, SPEAKER), torch.float32)
        prompt = b.buffer("prompt", (b.size, voices[0].cond_prompt_speech_tokens.shape[1]), torch.int64)
        emotion = b.buffer("emotion", (b.size,), torch.float32)
        for i, voice in enumerate(voices):
            speaker[i], prompt[i] = voice.speaker_emb[0], voice.cond_prompt_speech_tokens[0]
            emotion[i] = b.rows[i].knobs.knobs.exaggeration

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        held, dtype = b.buffers, self.prefixes.dtype
        made = self.net.condition(held["speaker"].to(dtype), held["prompt"], held["emotion"].to(dtype))
        self.prefixes[b.slots, : made.shape[1]] = made
        return {}

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        prompts = [self._prompt(row.knobs) for row in b.rows]
        lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        return Settled(np.full(b.n, Verdict.DONE), {"prompt": Packed(np.concatenate(prompts), lengths)})

    def _prompt(self, utterance: Utterance) -> np.ndarray:
        c = self.net.config
        prefix = np.zeros(c.prefix(utterance.prompt), np.int64)
        return np.concatenate([prefix, utterance.text, np.full(1 if c.turbo else 2, START_SPEECH)])


class T3Node(Node):
    """Speech tokens, one a step, start and stop removed. Prompts and decoding rows share a step.

    Which embedding a token has follows from its position: conditioning, then text, then speech. `alignment`: the
    analyser, where the model has one. `silence`: silent tokens behind the speech.
    """

    name = "t3"
    writes = ("t3_kv", "t3_sampler")

    def __init__(
        self, net: T3, sampler: Sampler, prefixes: Tensor, budget: int, alignment: Alignment | None, silence: int
    ) -> None:
        self.net, self.sampler, self.prefixes = net, sampler, prefixes
        self.alignment, self.silence = alignment, silence
        rows, device = len(prefixes) - 1, prefixes.device
        self.budget = float(budget)
        self.buckets = _buckets(rows, 1 if net.config.turbo else 2, budget)
        self.last, self.text_from, self.speech_from = torch.zeros(3, rows + 1, dtype=torch.int64, device=device)
        self.weight = torch.zeros(rows + 1, device=device)
        self.left, self.stop = np.zeros((2, rows + 1), np.int64)
        self.seen = sampler.table("prompt", torch.bool)  # tokens that the penalty counts before any was chosen

    def begin(self, row: Row) -> None:
        utterance: Utterance = row.knobs
        c, k, slot = self.net.config, utterance.knobs, row.slot
        row.state = utterance.lanes
        self.text_from[slot] = c.prefix(utterance.prompt)
        self.speech_from[slot] = c.prefix(utterance.prompt) + len(utterance.text)
        self.weight[slot] = utterance.weight
        self.left[slot] = utterance.limit
        self.stop[slot] = -1 if k.ignore_eos else STOP_SPEECH
        if self.alignment is not None:
            self.alignment.reset(slot, len(utterance.text))
        params, units = params_of(k, c.speech_vocab), utterance.units(c)
        self.sampler.set(slot, params, utterance.seed, prompt=[START_SPEECH], length=units)

    def offer(self, row: Row) -> Offer | None:
        chunk = row.chunks["prompt"]
        if chunk is not None:
            return Offer(("t3",), chunk.stop - chunk.fresh, 1, row.state, take=("prompt",))
        return DECODE[row.state] if row.ended["prompt"] else None

    def stage(self, b: Batch) -> None:
        """Ids of the packed tokens, -1 for a row's last token; which lane knows the text; which rows speak."""
        ids = b.buffer("ids", (b.total,), torch.int64)
        knows = b.buffer("knows", (b.total,), torch.bool)
        speaks = b.buffer("speaks", (b.size,), torch.bool)
        ids.fill_(-1)
        knows.fill_(True)
        speaks.fill_(True)
        if not b.ins:
            return
        prompts, chunks, start = b.ins["prompt"], b.taken["prompt"], 0
        for i, (units, lanes) in enumerate(zip(b.units.tolist(), b.lanes, strict=True)):
            stop, chunk = start + units * len(lanes), chunks[i]
            if chunk is not None:
                ids[start:stop] = torch.as_tensor(prompts.row(i)).repeat(len(lanes))
                knows[start + units : stop] = False
                speaks[i] = chunk.final
            start = stop

    def launch(self, b: Batch) -> Mapping[str, Tensor]:
        kv, net, looks = b.use["t3_kv"], self.net, list[Tensor]()
        hidden = net.tfmr(self._embed(b), kv.positions, self._attend(kv, looks))
        logits = net.logits(hidden[kv.last])
        if not net.config.turbo:
            logits = guide(logits, net.logits(hidden[kv.last_second]), self.weight[b.slots])
        if self.alignment is not None:
            logits = self.alignment.advance(b, logits, looks, self.text_from, self.speech_from, self.last)
        token = b.use["t3_sampler"](logits)
        if net.config.turbo:
            self._forget_start(b)
        self.last[b.slots] = token
        return {"token": token}

    def _embed(self, b: Batch) -> Tensor:
        """Embeddings [T, D] of the packed tokens."""
        kv, net = b.use["t3_kv"], self.net
        rows, at = b.slots[kv.token_rows], kv.positions
        ids = torch.where(b.buffers["ids"] < 0, self.last[rows], b.buffers["ids"])
        spoken, text = at - self.speech_from[rows], at - self.text_from[rows]
        is_text = spoken < 0
        texts = net.text(torch.where(is_text & (text >= 0), ids, 0), text.clamp(min=0), b.buffers["knows"])
        # The start token stands twice in front of the speech, both times at the first position of speech.
        speech = net.speech(torch.where(is_text, 0, ids), (spoken - 1).clamp(min=0))
        prefix = self.prefixes[rows, at.clamp(max=self.prefixes.shape[1] - 1)]
        return torch.where((text < 0)[:, None], prefix, torch.where(is_text[:, None], texts, speech))

    def _attend(self, kv: Any, looks: list[Tensor]) -> Attend:
        """The cache's attention; the scores of the heads that follow the text are kept."""
        heads = {} if self.alignment is None else self.alignment.heads

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            found = kv.attend(layer, q, k, v)
            if layer in heads:
                looks.append(kv.scores(layer, q, heads[layer]))
            return found

        return attend

    def _forget_start(self, b: Batch) -> None:
        """Turbo's penalty counts the start token at the first choice only."""
        self.seen[b.slots, START_SPEECH] &= ~b.buffers["speaks"]

    def settle(self, b: Batch, out: Mapping[str, Any]) -> Settled:
        tokens = out["token"][: b.n]
        speaks = np.ones(b.n, bool)
        if b.taken:
            speaks = np.array([chunk is None or chunk.final for chunk in b.taken["prompt"]])
        self.left[b.index] -= speaks
        ended = speaks & (tokens == self.stop[b.index])
        done = ended | (speaks & (self.left[b.index] <= 0))
        said = speaks & ~ended & (tokens < SPEECH_TOKENS)  # control tokens have no sound
        return Settled(Verdict.until(done), {"tokens": self._items(tokens, said, done)})

    def _items(self, tokens: np.ndarray, said: np.ndarray, done: np.ndarray) -> Packed:
        counts = said.astype(np.int64)
        if not self.silence or not done.any():
            return Packed(tokens[said], counts)
        at = np.repeat(np.cumsum(counts)[done], self.silence)
        return Packed(np.insert(tokens[said], at, SILENCE), counts + self.silence * done)


def params_of(k: SpeakKnobs, vocab: int) -> SamplingParams:
    """The sampler's parameters. Filters that keep the whole vocabulary are off."""
    return SamplingParams(
        temperature=0.0 if k.temperature < GREEDY else k.temperature,
        top_k=0 if k.top_k >= vocab else k.top_k,
        top_p=k.top_p,
        min_p=0.0 if "min_p" in k.IGNORES else k.min_p,
        repetition_penalty=k.repetition_penalty,
    )


def order_of(c: T3Config) -> tuple[str, ...]:
    """The order of the sampler's operations: Turbo's package penalises last."""
    if c.turbo:
        return ("temperature", "top_k", "top_p", "penalty")
    return ("penalty", "temperature", "top_k", "min_p", "top_p")


def _buckets(rows: int, lanes: int, budget: int) -> tuple[tuple[int, int], ...]:
    """Decoding by powers of two, then steps with prompts in them."""
    sizes = [n for n in (1, 2, 4, 8, 16, 32, 64) if n < rows] + [rows]
    steps = [units for units in (128, 512) if rows * lanes < units < budget]
    return tuple((n, n * lanes) for n in sizes) + tuple((rows, units) for units in [*steps, budget])
