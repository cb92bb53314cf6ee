"""The page at `/`: try what is loaded, in a browser. One file, no outside resources, no build."""

from __future__ import annotations

from importlib import resources

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from serving.api.state import Spec

# The page's own script and style, this server's answers, and media made in the browser; nothing else.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data: blob:; media-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def page(request: Request) -> Response:
    """The page."""
    text = resources.files("serving.api.routes").joinpath("page.html").read_text(encoding="utf-8")
    headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
    return HTMLResponse(text, headers=headers)


ROUTES = (Spec("/", page, summary="A page to try the loaded models"),)
