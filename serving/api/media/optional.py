"""PyAV, which is not installed by default: its wheel carries GPL codecs."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from serving.errors import BadRequest

HINT = "pip install 'multimodal-toolkit[media]'"


def has_pyav() -> bool:
    return importlib.util.find_spec("av") is not None


def pyav(what: str, param: str) -> Any:
    """The module, or a 400 that says what needs it and how to get it."""
    if not has_pyav():
        message = f"{what} needs PyAV on the server: {HINT}"
        raise BadRequest(message, param=param, code="unsupported_format")
    return importlib.import_module("av")
