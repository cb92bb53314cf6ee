"""Server-sent events as OpenAI writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MEDIA_TYPE = "text/event-stream; charset=utf-8"
DONE = b"data: [DONE]\n\n"


def event(body: Mapping[str, Any]) -> bytes:
    """One event; its type, where it has one, is named in the event line too."""
    head = f"event: {body['type']}\n" if "type" in body else ""
    return f"{head}data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()
