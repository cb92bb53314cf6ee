"""Keys and values in pages: who holds which, and what a step may write and read.

A sequence belongs to an owner and a lane. Its pages are taken when the owner is admitted, so that planning a
step only advances lengths and fills index buffers; the block table is resident and changes in place.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from serving.attention import Layout, attend_with
from serving.core.contract import MAIN, Batch, Resource
from serving.errors import SetupError
from serving.resources.kv_step import KVStep, Pool
from serving.resources.packing import Packing, lane_of, pack
from serving.resources.pages import Pages
from serving.resources.staging import Block

_numbers = itertools.count()


@dataclass(slots=True)
class Held:
    """What an owner has: its sequences by lane, and the slots that find it."""

    seqs: dict[str, int] = field(default_factory=dict)
    slots: set[int] = field(default_factory=set)


class PagedKV(Resource):
    """A pool [layers, pages + 1, kv_heads, page_size, head_dim] each for keys and values; page 0 is the sink.

    `slots`: seats that steps address. `owners`: most owners at once (sessions may outlive their seats).
    `scale` multiplies the dot products, head_dim ** -0.5 by default.
    """

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        page_size: int,
        pages: int,
        slots: int,
        max_len: int,
        lanes: tuple[str, ...] = MAIN,
        owners: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        numerics: str = "fast",
        attention: str | None = None,
        scale: float | None = None,
    ) -> None:
        if min(layers, kv_heads, head_dim, page_size, pages, slots, max_len) < 1 or not lanes:
            raise SetupError("every size of a paged cache is at least 1, and it has at least one lane")
        self.capacity = pages
        self.page_size, self.max_len = page_size, max_len
        self.scale = head_dim**-0.5 if scale is None else scale
        self.names = lanes
        self.lanes = {name: i for i, name in enumerate(lanes)}
        shape = (layers, pages + 1, kv_heads, page_size, head_dim)
        count = (owners or 4 * slots) * len(lanes)
        self.pool = Pool(
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros((count + 1, -(-max_len // page_size)), dtype=torch.int64, device=device),
            attend_with(attention, numerics),
        )
        self.table = self.pool.table.cpu().numpy()  # shares memory on a CPU; row 0 is the sink sequence
        self.pages = Pages(pages)
        self.length = np.zeros(count + 1, np.int64)
        self.room = np.zeros(count + 1, np.int64)  # tokens that a sequence's pages hold
        self.seq = np.zeros((slots + 1, len(lanes)), np.int64)  # slot, lane -> sequence
        self._spare = deque(range(1, count + 1))
        self._held: dict[str, Held] = {}
        self._owner: dict[int, str] = {}  # slot -> owner
        self._past: dict[int, np.ndarray] = {}  # step in flight -> its rows that went past their room
        self._name = f"kv{next(_numbers)}"

    def need(self, lanes: tuple[str, ...], units: int) -> int:
        """Pages for `units` tokens in each lane; more than there are if a sequence may not grow so long."""
        if units > self.max_len:
            return self.capacity + 1
        return min(len(lanes), len(self.lanes)) * -(-units // self.page_size)

    def worst(self) -> int:
        return self.need(tuple(self.lanes), self.max_len)

    def reserve(self, owner: str, lanes: tuple[str, ...], units: int) -> bool:
        """Room for `units` more tokens than each lane has stored, or nothing and False."""
        held = self._held.get(owner) or Held()
        names = sorted({self.names[lane_of(self.lanes, name)] for name in lanes})
        wants = [self._missing(held.seqs.get(name, 0), units) for name in names]
        fresh = [name for name in names if name not in held.seqs]
        if None in wants or sum(want or 0 for want in wants) > self.pages.free or len(fresh) > len(self._spare):
            return False
        self._held[owner] = held
        for name in fresh:
            held.seqs[name] = self._spare.popleft()
        for name, want in zip(names, wants, strict=True):
            self._grow(held.seqs[name], want or 0)
        for slot in held.slots:
            self._point(slot, held)
        return True

    def _missing(self, seq: int, units: int) -> int | None:
        """Pages that a sequence lacks for `units` more tokens; None: it may not grow so long."""
        total = int(self.length[seq]) + units
        if total > self.max_len:
            return None
        return max(0, -(-total // self.page_size) - int(self.room[seq]) // self.page_size)

    def _grow(self, seq: int, count: int) -> None:
        held = int(self.room[seq]) // self.page_size
        taken = self.pages.take(count)
        self.table[seq, held : held + count] = taken
        self._show(seq)
        self.room[seq] += count * self.page_size
        self.pool.stale.extend(taken)

    def _show(self, seq: int) -> None:
        """Let the device see a changed row of the block table."""
        if self.pool.table.device.type != "cpu":
            self.pool.table[seq].copy_(torch.from_numpy(self.table[seq]))

    def bind(self, slot: int, owner: str) -> None:
        """The slot finds the owner's sequences; an owner without any finds the sink."""
        before = self._held.get(self._owner.pop(slot, ""))
        if before is not None:
            before.slots.discard(slot)
        self.seq[slot] = 0
        held = self._held.get(owner)
        if held is not None:
            self._owner[slot] = owner
            held.slots.add(slot)
            self._point(slot, held)

    def _point(self, slot: int, held: Held) -> None:
        for name, seq in held.seqs.items():
            self.seq[slot, self.lanes[name]] = seq

    def plan(self, b: Batch, *, write: bool) -> KVStep:
        """Index buffers and the layout of the step. A writing step advances the lengths at once."""
        packed = pack(b, self.lanes)
        seqs = self._seqs(b, packed)
        first = lengths = self.length.take(seqs)
        if write:
            lengths = first + packed.units
            self.length[seqs] = lengths
            if np.count_nonzero(lengths > self.room.take(seqs)):
                self._past[id(b)] = np.unique(packed.rows[lengths > self.room[seqs]])
                seqs, first, lengths = self._void(seqs, first, lengths)
        layout = Layout(packed.starts, first, lengths, seqs, self.table, self.page_size, write, self.scale)
        return KVStep(self.pool, layout, self._fill(b, packed, layout), b.total, b.size, packed.ones)

    def _seqs(self, b: Batch, packed: Packing) -> np.ndarray:
        """[m] the sequences of the batch's rows and lanes."""
        return self.seq.ravel().take(b.index.take(packed.rows) * len(self.names) + packed.lanes)

    def _void(self, seqs: np.ndarray, first: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, ...]:
        """Send sequences past their room to the sink.

        A step that runs ahead may carry a row that has just filled its room and is found finished one step
        later. `commit` refuses such units if they are kept.
        """
        room = self.room[seqs]
        over = lengths > room
        if (first[over] != room[over]).any():
            raise ValueError("a step writes more than its owner has reserved")
        return np.where(over, 0, seqs), np.where(over, 0, first), np.where(over, lengths - first, lengths)

    def _fill(self, b: Batch, packed: Packing, layout: Layout) -> Tensor:
        """positions, rows, sequences [T each], last, last_second [size each]."""
        block = Block(b, self._name, 3 * b.total + 2 * b.size)
        if packed.ones:
            block.put(layout.first, b.total)
            block.put(packed.rows, b.total, b.size - 1)
            block.put(layout.seqs, b.total)
        else:
            block.put(layout.first.take(packed.tokens) + packed.steps, b.total)
            block.put(packed.rows.take(packed.tokens), b.total, b.size - 1)
            block.put(layout.seqs.take(packed.tokens), b.total)
        block.put(packed.last, b.size)
        block.put(packed.last_second, b.size)
        return block.push()

    def commit(self, b: Batch, kept: np.ndarray) -> None:
        """Take back what a writing step advanced but did not keep."""
        past = self._past.pop(id(b), None)
        if past is not None and kept[past].any():
            raise ValueError("a step kept more than its owner has reserved")
        lost = b.units - kept
        if np.count_nonzero(lost):
            packed = pack(b, self.lanes)
            self.length[self._seqs(b, packed)] -= lost[packed.rows]

    def truncate(self, owner: str, length: int, lanes: tuple[str, ...] | None = None) -> None:
        """Forget what the owner stored from position `length` on; its pages stay reserved."""
        for name, seq in self._held[owner].seqs.items():
            if lanes is None or name in lanes:
                self.length[seq] = min(length, int(self.length[seq]))

    def stored(self, owner: str, lane: str = MAIN[0]) -> int:
        """Tokens stored in the owner's lane, steps in flight included."""
        return int(self.length[self._held[owner].seqs[lane]])

    def release(self, owner: str) -> None:
        held = self._held.pop(owner, None)
        if held is None:
            return
        for slot in held.slots:
            del self._owner[slot]
            self.seq[slot] = 0
        for seq in held.seqs.values():
            self.pages.drop(self.table[seq, : self.room[seq] // self.page_size].tolist())
            self.table[seq] = 0
            self._show(seq)
            self.length[seq] = self.room[seq] = 0
            self._spare.append(seq)
