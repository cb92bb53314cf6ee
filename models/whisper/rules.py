"""Which tokens may come next: Whisper's suppression and timestamp rules, over device tables, a row a slot.

Rules of openai-whisper's decoding. A transcript does not begin with a blank. With timestamps on: it begins with a
timestamp, at most `first_most`; timestamps come in pairs, except right before the end; they do not decrease, and a
segment is not empty; where all timestamps together are likelier than the best text, a timestamp it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.whisper.tokenizer import Tokenizer

NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class Rules:
    """A row's rules. `banned` [V] bool: never chosen."""

    banned: Tensor
    no_blank: bool = True
    timed: bool = True
    first_most: int = 50  # the latest first timestamp, in steps of 20 ms


def banned(tokenizer: Tokenizer, vocab: int, suppress: Sequence[int], timed: bool) -> Tensor:
    """[V] bool: the request's list (-1 stands for what is not spoken), and what only prompts hold."""
    ids = [i for i in suppress if i >= 0] + [*tokenizer.not_sampled]
    if -1 in suppress:
        ids += tokenizer.not_spoken
    if timed:
        ids.append(tokenizer.no_timestamps)
    return torch.zeros(vocab, dtype=torch.bool).index_fill_(0, torch.tensor(ids), True)


def only(ids: Sequence[int], vocab: int) -> Rules:
    """Choose among these."""
    mask = torch.ones(vocab, dtype=torch.bool).index_fill_(0, torch.tensor(list(ids)), False)
    return Rules(mask, no_blank=False, timed=False)


class RuleTables:
    """The rules of every slot and where its transcript stands; slot 0 is the sink."""

    TABLES = ("banned", "no_blank", "timed", "stamped", "stamped_before", "count", "stamp", "first_most")

    def __init__(self, tokenizer: Tokenizer, slots: int, vocab: int, device: str = "cpu") -> None:
        self.eot, self.begin = tokenizer.eot, tokenizer.timestamps
        self.blanks = torch.tensor(tokenizer.blanks, device=device)
        self.stamps = torch.arange(self.begin, vocab, device=device)
        self.banned = torch.zeros(slots + 1, vocab, dtype=torch.bool, device=device)
        flags = torch.zeros(4, slots + 1, dtype=torch.bool, device=device)
        self.no_blank, self.timed, self.stamped, self.stamped_before = flags
        numbers = torch.zeros(3, slots + 1, dtype=torch.int64, device=device)
        self.count, self.stamp, self.first_most = numbers

    def set(self, slot: int, rules: Rules) -> None:
        """A new transcript in the slot."""
        self.banned[slot] = rules.banned
        self.no_blank[slot], self.timed[slot] = rules.no_blank, rules.timed
        self.first_most[slot] = self.begin + rules.first_most
        self.count[slot] = 0
        self.stamp[slot] = self.begin - 1
        self.stamped[slot], self.stamped_before[slot] = False, True

    def filter(self, logits: Tensor, slots: Tensor) -> Tensor:
        """float32 logits [size, V] with what may not come next at -inf."""
        x = logits.float().masked_fill(self.banned[slots], NEVER)
        first = self.count[slots] == 0
        blank = (first & self.no_blank[slots])[:, None]
        x[:, self.blanks] = x[:, self.blanks].masked_fill(blank, NEVER)
        timed, stamped, before = self.timed[slots], self.stamped[slots], self.stamped_before[slots]
        least = self.stamp[slots] + 1 - (stamped & ~before).long()
        most = torch.where(first, self.first_most[slots], self.stamps[-1])
        out = (self.stamps < least[:, None]) | (self.stamps > most[:, None]) | (stamped & before)[:, None]
        x[:, self.begin :].masked_fill_(timed[:, None] & out, NEVER)
        self._leave_stamps(x, timed, first, stamped & ~before)
        return x

    def _leave_stamps(self, x: Tensor, timed: Tensor, first: Tensor, paired: Tensor) -> None:
        """Forbid text where a timestamp must come, or all timestamps together are likelier than the best text.

        Text and special tokens each in one pass: at this width it is passes that cost.
        """
        text, special = x[:, : self.eot], x[:, self.eot : self.begin]
        no_text, no_special = timed & (first | paired), timed & first
        best = torch.maximum(text.amax(-1).masked_fill(no_text, NEVER), special.amax(-1).masked_fill(no_special, NEVER))
        likelier = timed & (x[:, self.begin :].logsumexp(-1) > best)
        text.masked_fill_((no_text | likelier)[:, None], NEVER)
        special.masked_fill_((no_special | likelier)[:, None], NEVER)

    def append(self, slots: Tensor, tokens: Tensor) -> None:
        """The tokens chosen for the slots."""
        is_stamp = tokens >= self.begin
        self.stamped_before[slots] = self.stamped[slots] | (self.count[slots] == 0)
        self.stamped[slots] = is_stamp
        self.stamp[slots] = torch.where(is_stamp, tokens, self.stamp[slots])
        self.count[slots] += 1
