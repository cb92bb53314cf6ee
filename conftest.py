"""What every suite of this repository shares: how to load and to serve a registry key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import settings

from models import registry
from perf.launch import running, toolkit
from serving.core.contract import Options

pytest_plugins = ["pytester"]

settings.register_profile("change", deadline=None)  # what a busy machine takes is no failure
settings.register_profile("nightly", max_examples=5000, deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="also run what is too long for every change")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "nightly: too long for every change; runs with --nightly")
    settings.load_profile("nightly" if config.getoption("nightly") else "change")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave nightly tests out of an ordinary run: deselected, and counted as such, not skipped."""
    if config.getoption("nightly"):
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def pytest_parity_load(key: str, options: Mapping[str, Any], config: pytest.Config) -> Any:
    """The port of a key in exact numerics, unless the suite asks otherwise."""
    return registry.load(key, Options(**{"profile": "exact", "device": config.getoption("parity_device"), **options}))


@contextmanager
def pytest_parity_serve(key: str, options: Mapping[str, Any], config: pytest.Config) -> Iterator[str]:
    """`toolkit serve KEY` on a free port; an option `numerics="invariant"` becomes `--numerics invariant`."""
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    with TemporaryDirectory() as logs, running(toolkit(key, *flags), Path(logs)) as server:
        yield server.target.url
