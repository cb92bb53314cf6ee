"""Keys and values in pages: who holds which, and what a step may write and read.

A sequence belongs to an owner and a lane. Its pages are taken when the owner is admitted, so that planning a step
only advances lengths and fills index buffers; the block table is resident and changes in place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from serving.attention import Layout, Ring, attend_with
from serving.core.contract import MAIN, Batch, Content, Resource
from serving.errors import SetupError
from serving.resources.kv_step import KVStep, Pool
from serving.resources.packing import Packing, lane_of, lost, pack
from serving.resources.pages import Pages
from serving.resources.prefix import PrefixCache, page_keys
from serving.resources.sequences import Sequences
from serving.resources.staging import Block

_numbers = itertools.count()


@dataclass(slots=True)
class Held:
    """What an owner has: its sequences by lane, and the slots that find it."""

    seqs: dict[str, int] = field(default_factory=dict)
    slots: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Steady:
    """What stays the same while a batch comes again, its slots in the very same array."""

    index: np.ndarray
    packed: Packing
    seqs: np.ndarray
    filled: list[Tensor] = field(default_factory=list)  # index buffers that hold all but its positions


@dataclass(frozen=True, slots=True)
class Saved:
    """A sequence on the host: its length, and k, v of the positions that count, [L, layers, Hk, D]."""

    length: int
    k: Tensor
    v: Tensor


class PagedKV(Resource):
    """A pool [layers, pages + 1, kv_heads, page_size, head_dim] each for keys and values; page 0 is the sink.

    `slots`: seats that steps address. `owners`: most owners at once (sessions may outlive their seats). `scale`
    multiplies the dot products, head_dim ** -0.5 by default. `window`: a query sees so many keys, itself included,
    and the first `sinks`; then a sequence holds a bounded ring of pages, and a step writes at most `step` tokens in it.
    """

    unit = "pages"

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
        window: int | None = None,
        sinks: int = 0,
        step: int = 512,
    ) -> None:
        if min(layers, kv_heads, head_dim, page_size, pages, slots, max_len, window or 1, step) < 1 or not lanes:
            raise SetupError("every size of a paged cache is at least 1, and it has at least one lane")
        self.capacity, self.page_size, self.step = pages, page_size, step
        self.stride, self.replays, self.partial = page_size, True, True
        self.scale = head_dim**-0.5 if scale is None else scale
        self.names, self.lanes = lanes, {name: i for i, name in enumerate(lanes)}
        self.ring = None if window is None else Ring(window, sinks, page_size, 2 * step)
        self.pages = Pages(pages)
        count = (owners or 4 * slots) * len(lanes)
        self.seqs = Sequences(self.pages, page_size, count, max_len, self.ring, device)
        shape = (layers, pages + 1, kv_heads, page_size, head_dim)
        k, v = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        self.nbytes = k.nbytes + v.nbytes + self.seqs.device.nbytes
        self.pool = Pool(k, v, self.seqs.device, attend_with(attention, numerics))
        self.cache = PrefixCache(self.pages)
        self.seq = np.zeros((slots + 1, len(lanes)), np.int64)  # slot, lane -> sequence
        self._held: dict[str, Held] = {}
        self._owner: dict[int, str] = {}  # slot -> owner
        self._steady: Steady | None = None
        self._past: dict[int, np.ndarray] = {}  # step in flight -> its rows that went past their room
        self._name = f"kv{next(_numbers)}"

    def need(self, lanes: tuple[str, ...], units: int) -> int:
        """Pages for `units` tokens in each lane; more than there are if a sequence may not grow so long."""
        if units > self.seqs.max_len:
            return self.capacity + 1
        return min(len(lanes), len(self.lanes)) * self.seqs.pages_for(units)

    def worst(self) -> int:
        return self.need(self.names, self.seqs.max_len)

    def reserve(self, owner: str, lanes: tuple[str, ...], units: int) -> bool:
        """Room for `units` more tokens than each lane has stored, or nothing and False."""
        held = self._held.get(owner) or Held()
        names = sorted({self.names[lane_of(self.lanes, name)] for name in lanes})
        wants = [self.seqs.missing(held.seqs.get(name, 0), units) for name in names]
        fresh = [name for name in names if name not in held.seqs]
        if None in wants or len(fresh) > len(self.seqs.spare) or not self._free(sum(want or 0 for want in wants)):
            return False
        self._held[owner] = held
        for name in fresh:
            held.seqs[name] = self.seqs.spare.popleft()
        for name, want in zip(names, wants, strict=True):
            self.pool.stale.extend(self.seqs.grow(held.seqs[name], want or 0))
        for slot in held.slots:
            self._point(slot, held)
        return True

    @property
    def free(self) -> int:
        """Pages that an owner can have, those included that only the prefix cache holds."""
        return self.pages.free + self.cache.evictable()

    def _free(self, count: int) -> bool:
        """Whether so many pages are free, once the prefix cache has given what it must."""
        lacking = count - self.pages.free
        if lacking > 0 and self.cache.evictable() >= lacking:
            self.cache.evict(lacking)
        return self.pages.free >= count

    def bind(self, slot: int, owner: str) -> None:
        """The slot finds the owner's sequences; an owner without any finds the sink."""
        before = self._held.get(self._owner.pop(slot, ""))
        if before is not None:
            before.slots.discard(slot)
        self._steady = None
        self.seq[slot] = 0
        held = self._held.get(owner)
        if held is not None:
            self._owner[slot] = owner
            held.slots.add(slot)
            self._point(slot, held)

    def _point(self, slot: int, held: Held) -> None:
        self._steady = None
        for name, seq in held.seqs.items():
            self.seq[slot, self.lanes[name]] = seq

    def plan(self, b: Batch, *, write: bool) -> KVStep:
        """Index buffers and the layout of the step. A writing step advances the lengths at once."""
        if self._steady is None or self._steady.index is not b.index:
            packed = pack(b, self.lanes)
            self._steady = Steady(b.index, packed, self._seqs(b, packed))
        packed, seqs = self._steady.packed, self._steady.seqs
        first = lengths = self.seqs.length.take(seqs)
        if write:
            lengths = first + packed.units
            self.seqs.length[seqs] = lengths
            if np.count_nonzero(lengths > self.seqs.room.take(seqs)):
                self._past[id(b)] = np.unique(packed.rows[lengths > self.seqs.room[seqs]])
                seqs, first, lengths = self._void(seqs, first, lengths)
            if self.ring is not None and packed.units.max(initial=0) > self.step:
                raise ValueError(f"a step writes at most {self.step} tokens into a window")
        layout = Layout(
            packed.starts, first, lengths, seqs, self.seqs.table, self.page_size, write, self.scale, self.ring
        )
        return KVStep(self.pool, layout, self._fill(b, packed, layout), b.total, b.size, packed.ones)

    def _seqs(self, b: Batch, packed: Packing) -> np.ndarray:
        """[m] the sequences of the batch's rows and lanes."""
        return self.seq.ravel().take(b.index.take(packed.rows) * len(self.names) + packed.lanes)

    def _void(self, seqs: np.ndarray, first: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, ...]:
        """Send sequences past their room to the sink.

        A step that runs ahead may carry a row that has just filled its room and is found finished one step
        later. `commit` refuses such units if they are kept.
        """
        room = self.seqs.room[seqs]
        over = lengths > room
        if (first[over] != room[over]).any():
            raise ValueError("a step writes more than its owner has reserved")
        return np.where(over, 0, seqs), np.where(over, 0, first), np.where(over, lengths - first, lengths)

    def _fill(self, b: Batch, packed: Packing, layout: Layout) -> Tensor:
        """positions, rows, sequences [T each], last, last_second [size each]."""
        block, steady = Block(b, self._name, 3 * b.total + 2 * b.size), self._steady
        if steady is not None and steady.seqs is layout.seqs and packed.ones and not block.apart:
            if any(tensor is block.tensor for tensor in steady.filled):
                block.put(layout.first, len(layout.first))
                return block.tensor
            steady.filled.append(block.tensor)
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
        back = lost(b, kept)
        if back is not None:
            packed = pack(b, self.lanes)
            self.seqs.length[self._seqs(b, packed)] -= back[packed.rows]

    def truncate(self, owner: str, length: int, lanes: tuple[str, ...] | None = None) -> None:
        """Forget what the owner stored from position `length` on; its room stays. No step of it is in flight."""
        for name, seq in self._held[owner].seqs.items():
            if lanes is None or name in lanes:
                self.seqs.truncate(seq, length, self.pool.copy)

    def fork(self, source: str, target: str, lanes: Mapping[str, str] | None = None) -> None:
        """Let the target's empty lanes go on where the source's are, sharing full pages.

        `lanes` maps source lanes to target lanes, by default each to itself. The target has reserved its room; no
        step of either is in flight.
        """
        mine, theirs = self._held[source].seqs, self._held[target].seqs
        for lane, other in (lanes or {name: name for name in mine}).items():
            self.seqs.fork(mine[lane], theirs[other], self.pool.copy)

    def known(self, content: Content) -> Sequence[int]:
        """Whole pages that the prefix cache has of every lane; at least one position of each is left to compute."""
        if self.ring is not None:
            return ()
        found = [len(self.cache.match(keys)) for _, keys in self._keys(content, 1)]
        return range(self.page_size, min(found, default=0) * self.page_size + 1, self.page_size)

    def _keys(self, content: Content, left: int = 0) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Each of the content's lanes, by its name here, with its page keys, `left` positions at the end left out."""
        for lane, items in content.items():
            name = self.names[lane_of(self.lanes, lane)]
            yield name, page_keys(items[: len(items) - left], self.page_size, f"{name}/{self.pool.k.dtype}")

    def adopt(self, owner: str, content: Content, length: int) -> None:
        """Begin the owner's empty lanes with shared pages; `length` is one of `known`."""
        for name, keys in self._keys(content):
            pages = self.cache.match(itertools.islice(keys, length // self.page_size))
            self.seqs.adopt(self._held[owner].seqs[name], pages)

    def publish(self, owner: str, content: Content) -> None:
        """Offer the owner's full pages to later owners; `content` says what its first tokens are, all committed."""
        if self.ring is None:
            for name, made in self._keys(content):
                keys = list(made)
                table = self.seqs.table[self._held[owner].seqs[name], : len(keys)]
                self.cache.publish(keys, table.tolist())

    def save(self, owner: str) -> dict[str, Saved]:
        """Copies on the host of what the owner has stored, by lane; no step of it is in flight."""
        return {name: self._save(seq) for name, seq in self._held[owner].seqs.items()}

    def _save(self, seq: int) -> Saved:
        pages, offsets = self.seqs.places(seq)
        k, v = (pool[:, pages, :, offsets].to("cpu", copy=True) for pool in (self.pool.k, self.pool.v))
        return Saved(int(self.seqs.length[seq]), k, v)

    def restore(self, owner: str, saved: Mapping[str, Saved]) -> None:
        """Put back what `save` returned into lanes of the same room; they have been reserved and are empty."""
        self.pool.scrub()
        for name, state in saved.items():
            seq = self._held[owner].seqs[name]
            if state.length > self.seqs.room[seq]:
                raise ValueError("the owner has not reserved room for what was saved")
            self.seqs.length[seq] = state.length
            pages, offsets = self.seqs.places(seq)
            self.pool.k[:, pages, :, offsets] = state.k.to(self.pool.k.device)
            self.pool.v[:, pages, :, offsets] = state.v.to(self.pool.v.device)

    def stored(self, owner: str, lane: str | None = None) -> int:
        """Tokens stored in the owner's lane, or in its longest, steps in flight included."""
        held = self._held[owner].seqs
        return max(int(self.seqs.length[seq]) for name, seq in held.items() if lane in (None, name))

    def short(self, slots: np.ndarray, units: np.ndarray) -> np.ndarray:
        """[n] whether one of a slot's sequences has less room than so many more tokens need."""
        seqs = self.seq[slots]  # [n, lanes]
        lacking = self.seqs.length[seqs] + units[:, None] > self.seqs.room[seqs]
        return (lacking & (seqs > 0)).any(1)

    def release(self, owner: str) -> None:
        held = self._held.pop(owner, None)
        if held is None:
            return
        for slot in held.slots:
            del self._owner[slot]
            self.seq[slot] = 0
            self._steady = None
        for seq in held.seqs.values():
            self.seqs.drop(seq)
