"""Faults of code that is no module: chunkers, framers, seeds, positions. Each wraps a callable."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest import mock

import torch
from torch import Tensor

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def dropped_last_chunk(make: Callable[..., Any]) -> Callable[..., Any]:
    """The callable's list or iterator of chunks without its last one."""

    @wraps(make)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return list(make(*args, **kwargs))[:-1]

    return wrapped


def off_by_one_frame(make: Callable[..., Any]) -> Callable[..., Any]:
    """The callable's array or tensor shifted by one along its last axis."""

    @wraps(make)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        frames = make(*args, **kwargs)
        rolled = torch.as_tensor(frames).roll(1, dims=-1)
        return rolled if isinstance(frames, Tensor) else rolled.numpy()

    return wrapped


def _shifted(name: str, change: Callable[[Any], Any]) -> Wrap:
    def wrap(make: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(make)
        if name not in signature.parameters:
            raise TypeError(f"{make!r} has no parameter {name!r}")

        @wraps(make)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            bound.arguments[name] = change(bound.arguments[name])
            return make(*bound.args, **bound.kwargs)

        return wrapped

    return wrap


def shared_seed(parameter: str = "seed") -> Wrap:
    """Wraps a callable so that its seed is always 0."""
    return _shifted(parameter, lambda _: 0)


def off_by_one_position(parameter: str = "positions") -> Wrap:
    """Wraps a callable so that its positions are one too large."""
    return _shifted(parameter, lambda positions: positions + 1)


@contextmanager
def planted(owner: Any, name: str, wrap: Wrap) -> Iterator[None]:
    """Plant a callable's fault: `with planted(streams, "chunks", dropped_last_chunk): ...`."""
    with mock.patch.object(owner, name, wrap(getattr(owner, name))):
        yield
