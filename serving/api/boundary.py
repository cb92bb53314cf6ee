"""The outermost ASGI layer: request ids, keys, seats, body bounds, metrics and logs around every request.

Whatever is raised below becomes the error envelope here, as long as no byte has left.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from contextlib import nullcontext
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.api import logs
from serving.api.auth import require_key
from serving.api.errors import respond, to_error
from serving.api.limits import bounded
from serving.api.state import Api
from serving.errors import Cancelled, ToolkitError

log = logging.getLogger("toolkit.access")
QUIET = ("/health", "/metrics")  # asked all the time by machines
CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")


@dataclass
class Exchange:
    """What is known of one request while it is answered; routes fill in the model and the seed."""

    request_id: str
    route: str
    arrived: float = field(default_factory=time.monotonic)
    model: str = ""
    status: int = 0
    error: ToolkitError | None = None
    cut: bool = False  # the response began and could not be finished
    headers: dict[str, str] = field(default_factory=dict)


class Boundary:
    """Wraps the application; `scope["exchange"]` is the request's `Exchange`."""

    def __init__(self, app: ASGIApp, api: Api) -> None:
        self.app, self.api = app, api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        spec = self.api.find(scope.get("method", "WS"), scope["path"])
        exchange = scope["exchange"] = Exchange(f"req_{uuid.uuid4().hex}", spec.path if spec else "other")
        token = logs.request_id.set(exchange.request_id)
        gauge = self.api.metrics.in_flight.labels(exchange.route)
        gauge.inc()
        try:
            await self._answer(scope, receive, send, exchange)
        finally:
            gauge.dec()
            self._record(scope, exchange)
            logs.request_id.reset(token)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                MutableHeaders(scope=message).update({"x-request-id": exchange.request_id, **exchange.headers})
            await send(message)

        try:
            await self._admitted(scope, receive, sending, exchange)
        except ClientDisconnect:
            exchange.error = Cancelled("The client left.")
        except Exception as error:
            exchange.error = to_error(error)
            if exchange.status:
                exchange.cut = True
            elif not isinstance(exchange.error, Cancelled):
                await _refuse(scope, receive, sending, exchange.error)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        headers, settings = Headers(scope=scope), self.api.settings
        require_key(scope["path"], headers, settings.api_keys)
        method = scope.get("method", "WS")
        spec = self.api.find(method, scope["path"])
        generates = spec is not None and spec.kind is not None and method == spec.method
        if generates:
            self.api.require_ready()
        with self.api.seats.take() if generates else nullcontext():
            if scope["type"] == "http":
                limit = spec.body_limit(settings.limits) if spec else settings.limits.json_bytes
                receive = bounded(receive, headers, limit, settings.timeouts.body)
            await self.app(scope, receive, send)

    def _record(self, scope: Scope, exchange: Exchange) -> None:
        status = exchange.error.status if exchange.error else exchange.status
        seconds = time.monotonic() - exchange.arrived
        labels = (exchange.route, exchange.model)
        self.api.metrics.requests.labels(*labels, str(status)).inc()
        self.api.metrics.seconds.labels(*labels).observe(seconds)
        if isinstance(exchange.error, Cancelled):
            self.api.metrics.aborts.labels(*labels).inc()
        self.api.metrics.steps.fold()
        fields = {
            "route": exchange.route,
            "model": exchange.model,
            "status": status,
            "seconds": round(seconds, 4),
        }
        if exchange.error:
            fields |= {"code": exchange.error.code, "cut": exchange.cut}
        client_id = Headers(scope=scope).get("x-client-request-id", "")
        if CLIENT_ID.fullmatch(client_id):
            fields["client_request_id"] = client_id
        quiet = exchange.route.startswith(QUIET) and not exchange.error
        log.log(logging.DEBUG if quiet else logging.INFO, "request", extra={"fields": fields})


async def _refuse(scope: Scope, receive: Receive, send: Send, error: ToolkitError) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": error.message[:120]})
    else:
        await respond(error)(scope, receive, send)
