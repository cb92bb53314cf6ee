"""Tokens from logits, every row by its own parameters, with draws that depend on seed and position only."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from serving.core.contract import MAIN, Batch, Content
from serving.errors import SetupError, nearest
from serving.resources import draws, sampling
from serving.resources.one_each import OneEach
from serving.resources.packing import lost

ORDER = ("penalty", "temperature", "top_k", "top_p", "min_p")
WARM, TOP_K, TOP_P, MIN_P, PENALTY, BIAS, MASK = (1 << i for i in range(7))
FLAGS = {"penalty": PENALTY, "temperature": WARM, "top_k": TOP_K, "top_p": TOP_P, "min_p": MIN_P}
SMALLEST = 1e-6  # of what logits are divided by
AHEAD = 8  # steps whose draws are made at once
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose a token. Temperature 0 takes the most likely one; the other defaults do nothing.

    A temperature or repetition penalty under `SMALLEST` counts as 0 or as `SMALLEST`: to divide by less would
    overflow.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise ValueError(f"sampling parameters out of range: {self}")
        if self.repetition_penalty <= 0:
            raise ValueError(f"repetition_penalty must be above 0, got {self.repetition_penalty}")

    @property
    def flags(self) -> int:
        """Which operations these parameters need."""
        penalty = self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0
        found = PENALTY * penalty | BIAS * bool(self.logit_bias)
        if self.temperature >= SMALLEST:
            found |= WARM | TOP_K * (self.top_k > 0) | TOP_P * (self.top_p < 1) | MIN_P * (self.min_p > 0)
        return found


NUMBERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)


@dataclass(frozen=True, slots=True)
class SavedSampler:
    """A slot of a sampler, on the host."""

    numbers: dict[str, Tensor]
    tables: dict[str, Tensor]
    flags: np.ndarray
    keys: np.ndarray
    position: int
    prompt: int


@dataclass(slots=True)
class Steady:
    """Rows that step together again and again, by as many units: what they need, and their draws, made ahead."""

    index: np.ndarray
    units: np.ndarray
    flags: np.ndarray  # [subs, n]
    found: int  # the flags of all rows
    keys: np.ndarray  # [subs, n]
    draws: Sequence[np.ndarray] | np.ndarray = ()  # [subs, n] each
    taken: int = 0

    def draw(self, position: np.ndarray) -> np.ndarray:
        """[subs, n] the draws at these positions, which are those of the last call and `units` more."""
        if self.taken == len(self.draws):
            count = AHEAD if self.taken else 1  # rows that step together once need no more
            self.draws = draws.uniform(self.keys, position + np.arange(count)[:, None, None] * self.units)
            self.taken = 0
        self.taken += 1
        return self.draws[self.taken - 1]


class Sampler(OneEach):
    """Parameters and counters by slot. `order`: the model's order of operations. `subs`: its samplers by
    name; the first one also has penalties, biases and masks. `allowed`: the range of tokens that the first
    may choose from.

    A draw is u = f(seed, sub, position), with position the units that the slot's steps have counted: the same
    for any batch, chunking or retry.
    """

    def __init__(
        self,
        *,
        slots: int,
        vocab: int,
        order: Sequence[str] = ORDER,
        subs: Sequence[str] = MAIN,
        allowed: slice | None = None,
        device: str = "cpu",
    ) -> None:
        for name in order:
            if name not in ORDER:
                raise SetupError(f'No sampling operation "{name}".{nearest(name, ORDER)}', param="order")
        super().__init__(slots)
        self.slots, self.vocab, self.device = slots, vocab, device
        self.order, self.allowed = tuple(order), allowed
        self.subs = {name: i for i, name in enumerate(subs)}
        shape = (len(subs), slots + 1)
        self.numbers = {name: torch.zeros(shape, dtype=torch.float32, device=device) for name in NUMBERS}
        self.nbytes = sum(table.nbytes for table in self.numbers.values())
        self.flags = np.zeros(shape, np.int64)
        self.keys = np.zeros(shape, np.uint64)
        self.position = np.zeros(slots + 1, np.int64)
        self.prompt = np.zeros(slots + 1, np.int64)  # a draw before the prompt's end counts for nothing
        self._tables: dict[str, Tensor] = {}
        self._steady: Steady | None = None
        self._name = f"sampler{next(_numbers)}"

    def bind(self, slot: int, owner: str) -> None:
        """The slot starts over: greedy, position 0."""
        super().bind(slot, owner)
        self.set(slot, SamplingParams())

    def set(
        self,
        slot: int,
        params: SamplingParams,
        seed: int = 0,
        *,
        prompt: Sequence[int] = (),
        output: Sequence[int] = (),
        length: int = 0,
        subs: Mapping[str, SamplingParams] | None = None,
    ) -> None:
        """Parameters of a slot before its first step. `subs` overrides them for the samplers it names.

        `prompt` and `output` are the tokens before the first draw: penalties count them. `length` is the
        units that the prompt's steps will count where that is more (embeddings).
        """
        self._steady = None
        each = [(subs or {}).get(name, params) for name in self.subs]
        for sub, chosen in enumerate(each):
            for number in NUMBERS:
                self.numbers[number][sub, slot] = getattr(chosen, number)
            self.numbers["repetition_penalty"][sub, slot] = max(SMALLEST, chosen.repetition_penalty)
            self.flags[sub, slot] = chosen.flags
        self.flags[1:, slot] &= ~(PENALTY | BIAS)
        self.keys[:, slot] = draws.keys(seed, len(self.subs))
        self.position[slot] = 0
        self.prompt[slot] = max(length, len(prompt) + len(output))
        if self.flags[0, slot] & PENALTY:
            self._remember(slot, prompt, output)
        if each[0].logit_bias:
            self._bias(slot, each[0].logit_bias)

    def _remember(self, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        seen, counts = self.table("prompt", torch.bool)[slot], self.table("counts", torch.int32)[slot]
        seen.zero_()
        counts.zero_()
        seen[torch.tensor(list(prompt), dtype=torch.int64, device=self.device)] = True
        made = torch.tensor(list(output), dtype=torch.int64, device=self.device)
        counts.index_add_(0, made, torch.ones_like(made, dtype=torch.int32))

    def _bias(self, slot: int, bias: Mapping[int, float]) -> None:
        row = self.table("bias", torch.float32)[slot]
        row.zero_()
        row[torch.tensor(list(bias), device=self.device)] = torch.tensor(list(bias.values()), device=self.device)

    def allow(self, slot: int, words: np.ndarray | None) -> None:
        """The tokens that the slot's next draws choose among: bit i of word w stands for token 32 w + i.

        `words` is [ceil(V / 32)] int32, or None for all. What is allowed next follows from the last token, so a row
        with a mask does not run ahead: call this once its last step has settled, before it offers again.
        """
        if words is not None:
            self.table("mask", torch.int32, -(-self.vocab // 32))[slot] = torch.from_numpy(words)
        if bool(self.flags[0, slot] & MASK) != (words is not None):
            self.flags[0, slot] ^= MASK
            self._steady = None

    def table(self, name: str, dtype: torch.dtype, width: int = 0) -> Tensor:
        """[slots + 1, width or vocab], made when a request first needs it."""
        if name not in self._tables:
            shape = (self.slots + 1, width or self.vocab)
            with torch.inference_mode(False):  # a step may be the first to ask, and `set` writes between steps
                self._tables[name] = torch.zeros(shape, dtype=dtype, device=self.device)
            self.nbytes += self._tables[name].nbytes
        return self._tables[name]

    def range(self, sub: int) -> slice:
        """The tokens that a sub-sampler chooses from."""
        return self.allowed if self.allowed is not None and not sub else slice(None)

    def known(self, content: Content) -> None:
        """Any beginning will do: only the count depends on it."""

    def adopt(self, owner: str, content: Content, length: int) -> None:
        """Count on from `length`, when so many positions have been taken from a cache."""
        self.position[self._owners[owner]] = length
        self._steady = None

    def save(self, owner: str) -> SavedSampler:
        """The owner's parameters and counters, on the host; no step of it is in flight."""
        slot = self._owners[owner]
        tables = {name: table[slot].to("cpu", copy=True) for name, table in self._tables.items()}
        numbers = {name: table[:, slot].to("cpu", copy=True) for name, table in self.numbers.items()}
        arrays = (self.flags[:, slot].copy(), self.keys[:, slot].copy())
        return SavedSampler(numbers, tables, *arrays, int(self.position[slot]), int(self.prompt[slot]))

    def restore(self, owner: str, state: SavedSampler) -> None:
        """Put back what `save` returned, in the slot that the owner has now."""
        slot = self._owners[owner]
        self._steady = None
        for name, values in state.numbers.items():
            self.numbers[name][:, slot] = values.to(self.device)
        for name, values in state.tables.items():
            self._tables[name][slot] = values.to(self.device)
        self.flags[:, slot], self.keys[:, slot] = state.flags, state.keys
        self.position[slot], self.prompt[slot] = state.position, state.prompt

    def plan(self, b: Batch, *, write: bool) -> SamplerStep:
        position = self.position.take(b.index) + b.units
        if write:
            self.position[b.index] = position
        steady = self._steady
        if steady is None or steady.index is not b.index or steady.units is not b.units:
            steady = self._steady = self._rows(b)
        u = None
        if steady.found & WARM:
            u = b.buffer(self._name, (len(self.subs), b.size), torch.float64)
            host = b.host(self._name)
            host[:, : b.n] = steady.draw(position)
            if u.device.type != "cpu":
                u.copy_(torch.from_numpy(host), non_blocking=True)
        due = position >= self.prompt[b.index] if steady.found & PENALTY else None
        return SamplerStep(self, b.slots, steady.flags, steady.found, u, due)

    def _rows(self, b: Batch) -> Steady:
        flags = self.flags.take(b.index, 1)
        return Steady(b.index, b.units, flags, int(np.bitwise_or.reduce(flags, axis=None)), self.keys.take(b.index, 1))

    def commit(self, b: Batch, kept: np.ndarray) -> None:
        back = lost(b, kept)
        if back is not None:
            self._steady = None
            self.position[b.index] -= back
            for step in b.use.values():
                if isinstance(step, SamplerStep) and step.sampler is self:
                    step.forget(np.flatnonzero((kept == 0) & (b.units > 0)))


@dataclass(slots=True)
class SamplerStep:
    """One planned step: call it with logits, once for each sub-sampler, which has one draw a step.

    Rows are the batch's; `flags` [subs, n] says what each needs.
    """

    sampler: Sampler
    slots: Tensor
    flags: np.ndarray
    found: int
    u: Tensor | None
    due: np.ndarray | None
    counted: Tensor | None = None  # the tokens that the penalties have counted, and how often
    weight: Tensor | None = None

    def __call__(self, logits: Tensor, sub: str = MAIN[0]) -> Tensor:
        """Tokens [size] int64 from logits [size, V]."""
        at = self.sampler.subs[sub]
        allowed = self.sampler.range(at)
        logits = self._processed(logits[:, allowed], at)
        tokens = logits.argmax(-1)
        warm = np.flatnonzero(self.flags[at] & WARM)
        if len(warm) and self.u is not None:
            rows = torch.from_numpy(warm).to(logits.device)
            tokens[rows] = sampling.draw(logits[rows], self.u[at, rows])
        tokens += allowed.start or 0
        if at == 0 and self.found & PENALTY:
            self._count(tokens)
        return tokens

    def process(self, logits: Tensor, sub: str = MAIN[0]) -> Tensor:
        """float32 logits [size, V] as the choice sees them: penalised, scaled, -inf where removed.

        For the penalties, a token that the step has drawn is one that went before: ask first.
        """
        at = self.sampler.subs[sub]
        allowed = self.sampler.range(at)
        out = torch.full_like(logits, sampling.NONE, dtype=torch.float32)
        out[:, allowed] = self._processed(logits[:, allowed], at)
        return out

    def logprobs(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """[size] natural logarithms of the tokens' probabilities; raw, or processed if `logits` are
        `process`ed.
        """
        return logits.float().log_softmax(-1).gather(-1, tokens[:, None])[:, 0]

    def _processed(self, logits: Tensor, sub: int) -> Tensor:
        logits = logits.float()
        flags = self.flags[sub]
        if self.found & BIAS and not sub:
            at = torch.from_numpy(np.flatnonzero(flags & BIAS)).to(logits.device)
            bias = self.sampler.table("bias", torch.float32)[self.slots[at]]
            logits = logits.index_add(0, at, bias[:, self.sampler.range(0)])
        if self.found & MASK and not sub:
            at = torch.from_numpy(np.flatnonzero(flags & MASK)).to(logits.device)
            words = self.sampler.table("mask", torch.int32)[self.slots[at]]
            masked = sampling.masked(logits[at], sampling.bits(words, self.sampler.vocab)[:, self.sampler.range(0)])
            logits = logits.index_copy(0, at, masked)
        for name in self.sampler.order:
            rows = np.flatnonzero(flags & FLAGS[name])
            if len(rows) == len(self.slots):
                logits = self._apply(name, logits, self.slots, sub)
            elif len(rows):
                at = torch.from_numpy(rows).to(logits.device)
                logits = logits.index_copy(0, at, self._apply(name, logits[at], self.slots[at], sub))
        return logits

    def _apply(self, name: str, logits: Tensor, slots: Tensor, sub: int) -> Tensor:
        numbers = {number: column[sub, slots] for number, column in self.sampler.numbers.items()}
        if name == "temperature":
            return logits / numbers["temperature"][:, None]
        if name != "penalty":
            return getattr(sampling, name)(logits, numbers[name])
        allowed = self.sampler.range(sub)
        seen = self.sampler.table("prompt", torch.bool)[slots][:, allowed]
        counts = self.sampler.table("counts", torch.int32)[slots][:, allowed]
        return sampling.penalise(logits, seen | (counts > 0), counts, *(numbers[number] for number in NUMBERS[4:]))

    def _count(self, tokens: Tensor) -> None:
        """Let the penalties know the tokens of rows whose prompt is over; the next step sees them."""
        due = torch.zeros(len(tokens), dtype=torch.int32)
        due[: len(self.flags[0])] = torch.from_numpy((self.flags[0] & PENALTY > 0) & self.due)
        weight = due.to(tokens.device)
        self._add(self.slots, tokens, weight)
        self.counted, self.weight = tokens, weight

    def _add(self, slots: Tensor, tokens: Tensor, weight: Tensor) -> None:
        self.sampler.table("counts", torch.int32)[slots, tokens] += weight

    def forget(self, rows: np.ndarray) -> None:
        """Take back what rows of a step that was rolled back have counted."""
        if self.counted is not None and self.weight is not None and len(rows):
            at = torch.from_numpy(rows).to(self.counted.device)
            self._add(self.slots[at], self.counted[at], -self.weight[at])
