"""Hooks that a project implements in its `conftest.py`, so that suites can ask for models and servers by
key.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import pytest


@pytest.hookspec(firstresult=True)
def pytest_parity_load(key: str, options: Mapping[str, Any], config: pytest.Config) -> Any:
    """Load the port of a key: what the fixture `port(key, **options)` returns, once for a session.

    Raise `parity.harness.states.NotRun` where its weights are not on this machine.
    """


@pytest.hookspec(firstresult=True)
def pytest_parity_serve(
    key: str, options: Mapping[str, Any], config: pytest.Config
) -> AbstractContextManager[str] | None:
    """Serve a key: a context manager that gives the base URL once ready. Kept open for the session."""
