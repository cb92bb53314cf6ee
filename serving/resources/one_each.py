"""What the resources share of which an owner has exactly one, at the slot that it is bound to."""

from __future__ import annotations

from serving.core.contract import Resource


class OneEach(Resource):
    """Counts owners up to `capacity` and knows the slot of each."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._owners: dict[str, int] = {}  # owner -> its slot, 0 before it is bound

    @property
    def free(self) -> int:
        return self.capacity - len(self._owners)

    def need(self, lanes: tuple[str, ...], units: int) -> int:
        return 1

    def reserve(self, owner: str, lanes: tuple[str, ...], units: int) -> bool:
        if owner not in self._owners and not self.free:
            return False
        self._owners.setdefault(owner, 0)
        return True

    def bind(self, slot: int, owner: str) -> None:
        if owner in self._owners:
            self._owners[owner] = slot

    def release(self, owner: str) -> None:
        self._owners.pop(owner, None)
