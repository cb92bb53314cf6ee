"""Recurrent state in tables indexed by slot: convolution tails, LSTM cells, SSM states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from serving.core.contract import Batch, Content, Resource
from serving.errors import SetupError
from serving.resources.snapshots import Snapshots

Spec = tuple[tuple[int, ...], torch.dtype]


class StateSlots(Resource):
    """Tables [slots + 1, *shape], zeroed when an owner first takes a slot; slot 0 is the sink.

    An owner that outlives its slot (a session) takes its state along: it is parked on the host when another
    owner gets the slot, and put back when the owner is bound again. `owners`: most owners at once. `snapshots`:
    bytes of states after known prefixes that are kept on the host, at multiples of `stride` positions.
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
    ) -> None:
        if slots < 1 or not state or stride < 1:
            raise SetupError("state slots need at least one slot, one table and a stride of 1")
        self.capacity, self.stride = owners or slots, stride
        self.snapshots = Snapshots(snapshots)
        self.tables = {
            name: torch.zeros((slots + 1, *shape), dtype=dtype, device=device) for name, (shape, dtype) in state.items()
        }
        self._slot: dict[str, int | None] = {}  # owner -> its slot
        self._owner: dict[int, str] = {}
        self._parked: dict[str, dict[str, Tensor]] = {}

    rollback, replays = False, True

    @property
    def free(self) -> int:
        return self.capacity - len(self._slot)

    def need(self, lanes: tuple[str, ...], units: int) -> int:
        return 1

    def reserve(self, owner: str, lanes: tuple[str, ...], units: int) -> bool:
        if owner not in self._slot:
            if not self.free:
                return False
            self._slot[owner] = None
        return True

    def bind(self, slot: int, owner: str) -> None:
        """Give the owner's state this slot: what it parked, what its former slot has, or zeros."""
        if self._owner.get(slot) == owner:
            return
        self._park(slot)
        if owner not in self._slot:
            return
        before = self._slot[owner]
        if before is not None:
            self._park(before)
        self._slot[owner], self._owner[slot] = slot, owner
        self.restore(owner, self._parked.pop(owner, {}))

    def _park(self, slot: int) -> None:
        owner = self._owner.get(slot)
        if owner is not None:
            self._parked[owner] = self.save(owner)
            self._slot[owner] = None
            del self._owner[slot]

    def save(self, owner: str) -> dict[str, Tensor]:
        """A copy on the host of the owner's state; no step of its slot is in flight."""
        slot = self._slot[owner]
        if slot is None:
            return self._parked.get(owner, {})
        return {name: table[slot].to("cpu", copy=True) for name, table in self.tables.items()}

    def restore(self, owner: str, state: Mapping[str, Tensor]) -> None:
        """Put back what `save` returned; tables that it lacks are zeroed."""
        slot = self._slot[owner]
        if slot is None:
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
        return self.tables

    def commit(self, b: Batch, kept: np.ndarray) -> None:
        """State cannot be taken back: a step keeps all of a row's units, or the row has ended."""

    def release(self, owner: str) -> None:
        slot = self._slot.pop(owner, None)
        if slot is not None:
            del self._owner[slot]
        self._parked.pop(owner, None)
