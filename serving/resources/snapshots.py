"""Recurrent states after known beginnings, on the host, within a budget of bytes; the least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from hashlib import sha256

from torch import Tensor

from serving.core.contract import Content
from serving.resources.hashing import Hashed

State = dict[str, Tensor]


class Snapshots:
    """States by the SHA-256 of every lane's content up to them."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        self._kept: OrderedDict[tuple[int, bytes], State] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def lengths(self, content: Content) -> list[int]:
        """After how many positions of `content`, ascending, a state is kept; one at least is left to compute."""
        most = min((len(items) for items in content.values()), default=0) - 1
        candidates = sorted({length for length, _ in self._kept if length <= most})
        return [key[0] for key in _keys(content, candidates) if key in self._kept]

    def get(self, content: Content, length: int) -> State:
        """One of those that `lengths` gave."""
        (key,) = _keys(content, [length])
        self._kept.move_to_end(key)
        return self._kept[key]

    def known(self, content: Content) -> bool:
        """There is a state after all of it."""
        (key,) = _keys(content, [_length(content)])
        return key in self._kept

    def keep(self, content: Content, state: State) -> None:
        """The state after all of `content`. One that is larger than the budget is not kept."""
        (key,) = _keys(content, [_length(content)])
        self._kept[key] = state
        self.used += _bytes(state)
        while self.used > self.budget:
            _, gone = self._kept.popitem(last=False)
            self.used -= _bytes(gone)


def _length(content: Content) -> int:
    return min((len(items) for items in content.values()), default=0)


def _bytes(state: State) -> int:
    return sum(table.nbytes for table in state.values())


def _keys(content: Content, lengths: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """A key for each of these lengths: of all lanes' names and beginnings."""
    lanes = [(lane.encode() + b"\0", Hashed.of(content[lane])) for lane in sorted(content)]
    for length in lengths:
        yield length, sha256(b"".join(name + items.digest(length) for name, items in lanes)).digest()
