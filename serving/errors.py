"""Every error that leaves the core or the API, with its HTTP status and OpenAI code. No handler builds error JSON."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ToolkitError(Exception):
    """An error that a user may see. `status`, `type` and `code` follow OpenAI's error envelope."""

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.code

    def body(self) -> dict[str, dict[str, str | None]]:
        """OpenAI's envelope."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class BadRequest(ToolkitError):
    """The caller's mistake: names the field, the rule and, where there is one, the nearest valid value."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class NotFound(BadRequest):
    status = 404
    code = "not_found"


class TooLarge(BadRequest):
    status = 413
    code = "too_large"


class Busy(BadRequest):
    """The session already has a request in it."""

    status = 409
    code = "session_busy"


class Overloaded(ToolkitError):
    """Try again: the queue is full, memory is short, or the server is not ready."""

    status = 503
    type = "overloaded_error"
    code = "overloaded"
    retry_after = 1


class Timeout(Overloaded):
    """A phase of the request took longer than its limit."""

    status = 504
    code = "timeout"


class EngineDead(Overloaded):
    """The engine has stopped; the server is no longer ready."""

    code = "engine_dead"


class StepFailed(ToolkitError):
    """A step of this request raised; other requests are not harmed."""

    code = "step_failed"


class Cancelled(ToolkitError):
    """The request was cancelled by its client."""

    status = 499
    code = "cancelled"


class SetupError(ToolkitError):
    """Start-up refused: a setting, a file or a pool does not fit."""

    code = "setup"


def nearest(value: str, valid: Iterable[str]) -> str:
    """A hint naming the closest valid value, or all of them when none is close: ' Did you mean "x"?'"""
    options = sorted(valid)
    close = difflib.get_close_matches(value, options, n=1, cutoff=0.6)
    if close:
        return f' Did you mean "{close[0]}"?'
    return f" Valid: {', '.join(options)}." if options else ""
