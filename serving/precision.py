"""A node's numeric settings around its steps: entered by the engine, put back after, never set on import."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from serving.errors import SetupError, nearest

SHARED = ("matmul_precision", "tf32", "deterministic")
SETTINGS = (*SHARED, "autocast")
Shared = tuple[tuple[str, Any], ...]


@contextmanager
def entered(settings: Mapping[str, Any], device: str = "cpu") -> Iterator[None]:
    """A node's settings around its step, and what was before after it.

    `matmul_precision`: "highest", "high" or "medium". `tf32`: whether cuDNN's convolutions and recurrences may use it
    (matrix products follow `matmul_precision`). `deterministic`: torch's deterministic algorithms. `autocast`: a dtype
    to compute in, or None. All but the last belong to the process, so steps that differ in them do not overlap.
    """
    for name in settings:
        if name not in SETTINGS:
            raise SetupError(f'No numerics setting "{name}".{nearest(name, SETTINGS)}', param="numerics")
    dtype = settings.get("autocast")
    cast = nullcontext() if dtype is None else torch.autocast(torch.device(device).type, dtype=dtype)
    with _turns.take(tuple((name, settings[name]) for name in SHARED if name in settings)), cast:
        yield


class Turns:
    """Lets steps with equal settings run together and the others wait, first come first served."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()
        self._running = 0
        self._current: Shared = ()
        self._before: Shared = ()

    @contextmanager
    def take(self, wanted: Shared) -> Iterator[None]:
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            self._changed.wait_for(lambda: self._queue[0] is ticket and self._fits(wanted))
            self._queue.popleft()
            if not self._running:
                self._current, self._before = wanted, _swap(wanted)
            self._running += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                if not self._running:
                    _swap(self._before)
                self._changed.notify_all()

    def _fits(self, wanted: Shared) -> bool:
        return not self._running or self._current == wanted


_turns = Turns()


def _swap(wanted: Shared) -> Shared:
    """Set the process's settings; returns what they were."""
    before = tuple((name, _now(name)) for name, _ in wanted)
    for name, value in wanted:
        if name == "matmul_precision":
            torch.set_float32_matmul_precision(value)
        elif name == "tf32":
            torch.backends.cudnn.allow_tf32 = value
        else:
            torch.use_deterministic_algorithms(value)
    return before


def _now(name: str) -> Any:
    if name == "matmul_precision":
        return torch.get_float32_matmul_precision()
    if name == "tf32":
        return torch.backends.cudnn.allow_tf32
    return torch.are_deterministic_algorithms_enabled()
