"""Recurrent state in tables indexed by slot: convolution tails, LSTM cells, SSM states."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from serving.core.contract import Batch, Content
from serving.errors import SetupError
from serving.resources.one_each import OneEach
from serving.resources.packing import lost
from serving.resources.snapshots import Snapshots

Spec = tuple[tuple[int, ...], torch.dtype]
_numbers = itertools.count()


class StateStep(Mapping[str, Tensor]):
    """The tables in one step: what its rows had is kept when `launch` asks for a table, in the order of steps."""

    def __init__(self, tables: Mapping[str, Tensor], b: Batch, name: str) -> None:
        self._tables, self._batch, self._name = tables, b, name
        self._before: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        table = self._tables[name]
        if name not in self._before:
            before = self._batch.buffer(f"{self._name}.{name}", (self._batch.size, *table.shape[1:]), table.dtype)
            self._before[name] = torch.index_select(table, 0, self._batch.slots, out=before)
        return table

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)

    def undo(self, rows: np.ndarray) -> None:
        """Put back what these rows of the batch had, if the step came so far as to ask for it."""
        for name, before in self._before.items():
            self._tables[name][self._batch.slots[rows]] = before[torch.from_numpy(rows)]


class StateSlots(OneEach):
    """Tables [slots + 1, *shape], zeroed when an owner first takes a slot; slot 0 is the sink.

    An owner that outlives its slot (a session) takes its state along: it is parked on the host when another
    owner gets the slot, and put back when the owner is bound again. `owners`: most owners at once. `snapshots`:
    bytes of states after known prefixes that are kept on the host, at multiples of `stride` positions. `rollback`:
    each step keeps what its rows had, so that one that fails can be taken back; it costs a copy of those rows.
    """

    def __init__(
        self,
        *,
        slots: int,
        state: Mapping[str, Spec],
        owners: int | None = None,
        device: str = "cpu",
        snapshots: int = 0,
        stride: int = 1,
        rollback: bool = False,
    ) -> None:
        if slots < 1 or not state or stride < 1:
            raise SetupError("state slots need at least one slot, one table and a stride of 1")
        super().__init__(owners or slots)
        self.stride, self.rollback = stride, rollback
        self.snapshots = Snapshots(snapshots)
        self.tables = {
            name: torch.zeros((slots + 1, *shape), dtype=dtype, device=device) for name, (shape, dtype) in state.items()
        }
        self.nbytes = sum(table.nbytes for table in self.tables.values())
        self._owner: dict[int, str] = {}
        self._parked: dict[str, dict[str, Tensor]] = {}
        self._steps: dict[int, StateStep] = {}  # those in flight that can be taken back
        self._name = f"state{next(_numbers)}"

    unit, replays = "slots", True

    def bind(self, slot: int, owner: str) -> None:
        """Give the owner's state this slot: what it parked, what its former slot has, or zeros."""
        if self._owner.get(slot) == owner:
            return
        self._park(slot)
        if owner not in self._owners:
            return
        self._park(self._owners[owner])
        super().bind(slot, owner)
        self._owner[slot] = owner
        self.restore(owner, self._parked.pop(owner, {}))

    def _park(self, slot: int) -> None:
        owner = self._owner.get(slot)
        if owner is not None:
            self._parked[owner] = self.save(owner)
            self._owners[owner] = 0
            del self._owner[slot]

    def save(self, owner: str) -> dict[str, Tensor]:
        """A copy on the host of the owner's state; no step of its slot is in flight."""
        slot = self._owners[owner]
        if not slot:
            return self._parked.get(owner, {})
        return {name: table[slot].to("cpu", copy=True) for name, table in self.tables.items()}

    def restore(self, owner: str, state: Mapping[str, Tensor]) -> None:
        """Put back what `save` returned; tables that it lacks are zeroed."""
        slot = self._owners[owner]
        if not slot:
            self._parked[owner] = dict(state)
            return
        for name, table in self.tables.items():
            if name in state:
                table[slot].copy_(state[name])
            else:
                table[slot].zero_()

    def known(self, content: Content) -> Sequence[int]:
        """Where snapshots were taken."""
        return self.snapshots.lengths(content)

    def adopt(self, owner: str, content: Content, length: int) -> None:
        """Begin with a snapshot; `length` is one of `known`."""
        self.restore(owner, self.snapshots.get(content, length))

    def publish(self, owner: str, content: Content) -> None:
        """Take a snapshot: the owner's state is the one after exactly `content`, and no step of it is in flight."""
        if self.snapshots.budget and not self.snapshots.known(content):
            self.snapshots.keep(content, self.save(owner))

    def plan(self, b: Batch, *, write: bool) -> Mapping[str, Tensor]:
        """The tables, for `launch`."""
        if not (write and self.rollback):
            return self.tables
        self._steps[id(b)] = StateStep(self.tables, b, self._name)
        return self._steps[id(b)]

    def commit(self, b: Batch, kept: np.ndarray) -> None:
        """A step keeps all of a row's units or, with `rollback`, none; without, a row that keeps none has ended."""
        step, back = self._steps.pop(id(b), None), lost(b, kept)
        if step is not None and back is not None:
            rows = np.flatnonzero(back)
            if kept[rows].any():
                raise ValueError("a state goes back a whole step or not at all")
            step.undo(rows)

    def release(self, owner: str) -> None:
        self._owner.pop(self._owners.get(owner, 0), None)
        super().release(owner)
        self._parked.pop(owner, None)
