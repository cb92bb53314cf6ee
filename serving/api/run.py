"""From a validated request to an answer: submit, phase timeouts, disconnects, streams.

A client that leaves cancels its work, whether it waits for a whole answer or reads a stream. What fails before the
first byte is an ordinary error response; what fails after it is told in the stream, which then ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from serving.api.body import Body, read_body
from serving.api.boundary import Exchange
from serving.api.errors import to_error
from serving.api.fields import Parsed, Schema, parse
from serving.api.metrics import Metrics
from serving.api.state import Api, Handle, Output, Spec, knobs_of
from serving.core.contract import LoadedModel, Task
from serving.errors import BadRequest, Cancelled, Timeout, ToolkitError

T = TypeVar("T")
Fail = Callable[[ToolkitError], bytes]


@dataclass(slots=True)
class Call:
    """One request on its way through a route."""

    api: Api
    spec: Spec
    exchange: Exchange
    body: Body

    def parse(self, **set_by_route: Any) -> tuple[LoadedModel, Parsed[Any]]:
        """The loaded model and the validated fields; `set_by_route` are knobs that the route decides."""
        assert self.spec.schema is not None
        assert issubclass(self.spec.schema, Schema)
        assert self.spec.kind is not None
        name = self.body.fields.get("model")
        if not isinstance(name, str) or not name.strip():
            raise BadRequest("You must provide a model parameter.", param="model", code="missing_required_parameter")
        model = self.api.model(name, self.spec)
        self.exchange.model = model.card.key
        knobs = knobs_of(model, self.spec.kind)
        parsed = parse(self.body.fields, self.spec.schema, knobs, text=self.body.text, **set_by_route)
        self.ignore(*parsed.ignored)
        return model, parsed

    def ignore(self, *names: str) -> None:
        """Say in the response that these fields had no effect."""
        held = self.exchange.headers.get("x-ignored-parameters")
        if names:
            self.exchange.headers["x-ignored-parameters"] = ", ".join([*([held] if held else []), *names])

    def knobs(self) -> type[BaseModel] | None:
        """The knobs of the named model's task, before anything is validated; None where `parse` will refuse."""
        name = self.body.fields.get("model")
        model = self.api.models.get(name) if isinstance(name, str) else None
        kind = self.spec.kind
        return knobs_of(model, kind) if model and kind and kind in model.card.tasks else None

    async def host(self, function: Callable[..., T], *args: Any) -> T:
        """Run media work on the pool of host threads."""
        return await asyncio.get_running_loop().run_in_executor(self.api.pool, function, *args)

    async def submit(
        self,
        model: LoadedModel,
        task: Task,
        route: Schema,
        *,
        session: str | None = None,
        live: bool = False,
        part: int | None = None,
        name: str | None = None,
    ) -> Handle:
        """Hand the task to the engine. The seed, given or drawn, is echoed in `x-seed`; `live`: played at once."""
        seed = getattr(route, "seed", None)
        seed = secrets.randbits(31) if seed is None else seed
        self.exchange.headers.setdefault("x-seed", str(seed))
        whole = name or self.exchange.request_id
        name = whole if part is None else f"{whole}-{part}"
        return await self.api.engine.submit(
            model.card.key, task, request_id=name, seed=seed, session=session, live=live
        )

    async def outputs(self, handle: Handle) -> AsyncGenerator[Output]:
        """The handle's outputs under the phase timeouts; leaving early cancels the request."""
        limits = self.api.settings.timeouts
        phase, seconds = "the first output", limits.first_output
        async with handle:
            iterator = aiter(handle)
            while True:
                try:
                    async with asyncio.timeout(seconds):
                        output = await anext(iterator)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise Timeout(f"Waited {seconds:g} seconds for {phase}.") from None
                yield output
                phase, seconds = "more output", limits.idle_output


def endpoint(spec: Spec) -> Callable[[Request], Awaitable[Response]]:
    """The function that FastAPI calls for a route with a body."""

    async def answer(request: Request) -> Response:
        api: Api = request.app.state.api
        if spec.kind:
            api.require_served(spec)
        async with read_body(request, spec, api.settings.limits) as body:
            call = Call(api, spec, request.scope["exchange"], body)
            return await unless_gone(request.receive, spec.handler(call))

    answer.__name__ = spec.handler.__name__
    return answer


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled as soon as the client has gone. The body must have been read."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise Cancelled("The client left.")
    finally:
        for pending in (task, gone):
            pending.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Stream(Response):
    """A body made as it is sent. `fail` writes an error in-band; without it the connection is cut.

    The first chunk is awaited before the status goes out, so that what fails early has a proper status.
    """

    def __init__(
        self, chunks: AsyncGenerator[bytes], media_type: str, timeout: float, fail: Fail | None = None
    ) -> None:
        self.chunks, self.media_type, self.timeout, self.fail = chunks, media_type, timeout, fail
        self.status_code, self.background = 200, None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})

    def init_headers(self, headers: Any = None) -> None:
        """Headers without a length: the body has none yet."""
        self.raw_headers = [(b"content-type", str(self.media_type).encode())]
        self.raw_headers += [(key.encode(), value.encode()) for key, value in (headers or {}).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = scope["app"].state.api.metrics
        await unless_gone(receive, self._run(scope["exchange"], paced(send, scope["exchange"], metrics)))

    async def _run(self, exchange: Exchange, send: Send) -> None:
        async with contextlib.aclosing(self.chunks) as chunks:
            first = await anext(chunks, b"")
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                await self._send(send, first)
                async for chunk in chunks:
                    await self._send(send, chunk)
            except Exception as error:
                exchange.error = to_error(error)
                if self.fail is None or isinstance(exchange.error, Cancelled):
                    exchange.cut = True  # ending without the last chunk makes the server drop the connection
                    return
                await self._send(send, self.fail(exchange.error))
            await self._send(send, b"", more=False)

    async def _send(self, send: Send, data: bytes, more: bool = True) -> None:
        message: Message = {"type": "http.response.body", "body": data, "more_body": more}
        try:
            async with asyncio.timeout(self.timeout):
                await send(message)
        except TimeoutError:
            raise Cancelled(f"The client read nothing for {self.timeout:g} seconds.") from None


def paced(send: Send, exchange: Exchange, metrics: Metrics) -> Send:
    """A `send` that measures when the chunks of a stream leave."""
    last: float | None = None

    async def sending(message: Message) -> None:
        nonlocal last
        if message.get("body"):
            now = time.monotonic()
            histogram, since = (metrics.first, exchange.arrived) if last is None else (metrics.gaps, last)
            histogram.labels(exchange.route, exchange.model).observe(now - since)
            last = now
        await send(message)

    return sending
