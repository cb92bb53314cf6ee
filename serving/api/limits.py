"""How much may be in the server at once, and how much a body may bring: bounded before anything is read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from serving.errors import Overloaded, Timeout, TooLarge


class Seats:
    """Requests in the server, from their first byte to their last: running rows plus a bounded queue."""

    def __init__(self, running: int, queue: int) -> None:
        self.capacity = running + queue
        self.taken = 0

    @contextmanager
    def take(self) -> Iterator[None]:
        """Hold a seat, or raise `Overloaded` at once."""
        if self.taken >= self.capacity:
            raise Overloaded("The queue is full; try again later.", code="queue_full")
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


def bounded(receive: Receive, headers: Headers, limit: int, seconds: float) -> Receive:
    """A `receive` that counts the body: over `limit` bytes, or `seconds` without one, it raises.

    The content length is believed only when it says that the body is too large.
    """
    promised = headers.get("content-length", "0")
    if promised.isdigit() and int(promised) > limit:
        raise _too_large(limit)
    read = 0
    complete = False

    async def receive_bounded() -> Message:
        nonlocal read, complete
        if complete:
            return await receive()
        try:
            async with asyncio.timeout(seconds):
                message = await receive()
        except TimeoutError:
            raise Timeout(f"The body stalled for {seconds:g} seconds.", code="body_timeout") from None
        read += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if read > limit:
            raise _too_large(limit)
        return message

    return receive_bounded


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than the limit of {limit} bytes.", code="body_too_large")
