"""API keys: bearer tokens compared in constant time. The health routes and the page stay public."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from pydantic import SecretStr
from starlette.datastructures import Headers

from serving.api.errors import Unauthorized

PUBLIC = ("/", "/health", "/health/live", "/health/ready")  # the page asks for a key itself
PROTOCOL_PREFIX = "openai-insecure-api-key."  # how browsers, which set no headers, send a key to a WebSocket


def require_key(path: str, headers: Headers, keys: Sequence[SecretStr]) -> None:
    """Raise `Unauthorized` unless the path is public, no key is set, or the request carries one of them."""
    if not keys or path in PUBLIC:
        return
    given = _given(headers).encode()
    # Every key is compared, so that the time says nothing about which one was close.
    matches = [hmac.compare_digest(given, key.get_secret_value().encode()) for key in keys]
    if not any(matches):
        raise Unauthorized("A valid API key is required: Authorization: Bearer <key>.")


def _given(headers: Headers) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    protocols = (part.strip() for part in headers.get("sec-websocket-protocol", "").split(","))
    return next((part.removeprefix(PROTOCOL_PREFIX) for part in protocols if part.startswith(PROTOCOL_PREFIX)), "")
