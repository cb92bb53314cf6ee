"""From exception to HTTP: the only place that turns an error into a status, headers and OpenAI's envelope."""

from __future__ import annotations

import json
import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serving.errors import BadRequest, NotFound, Overloaded, ToolkitError

log = logging.getLogger("toolkit.api")


class Unauthorized(BadRequest):
    """No API key, or a wrong one."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class MethodNotAllowed(BadRequest):
    status = 405
    code = "method_not_allowed"


class UnsupportedContent(BadRequest):
    """The body is neither of the kinds that the route reads."""

    status = 415
    code = "unsupported_content_type"


def to_error(error: BaseException) -> ToolkitError:
    """Any exception as one that a client may see; what is not ours is logged and says nothing of its insides."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ToolkitError):
        return error
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return Overloaded("Out of memory; try again later or with less input.", code="out_of_memory")
    log.error("unhandled", exc_info=error)
    return ToolkitError("The server had an error while processing your request.", code="internal_error")


def respond(error: ToolkitError) -> Response:
    """The envelope with its status and headers."""
    headers = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(error.retry_after)
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error.body(), error.status, headers)


def event(error: ToolkitError) -> bytes:
    """The envelope as a server-sent event: how an error travels after the first byte."""
    return f"event: error\ndata: {json.dumps(error.body())}\n\n".encode()


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own refusals (no such path, wrong method, malformed multipart) in the envelope."""
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return respond(NotFound(f"No route {request.url.path}.", code="unknown_route"))
    if error.status_code == 405:
        response = respond(MethodNotAllowed(f"{request.url.path} does not take {request.method}."))
        response.headers.update(error.headers or {})
        return response
    if error.status_code == 400:
        return respond(BadRequest(f"The body could not be read: {error.detail}", code="malformed_body"))
    return respond(to_error(error))
