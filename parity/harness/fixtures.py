"""The fixtures of the plugin: `oracle`, `check`, `ledger`, `weights`, `port`, `served`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from parity.harness.checks import Check, Oracle, Record
from parity.harness.ledger import Ledger
from parity.harness.session import Session
from parity.harness.states import NotRun

RECORD = pytest.StashKey[Record]()
SESSION = pytest.StashKey[Session]()


def weights_folder(config: pytest.Config) -> Path | None:
    """`--parity-weights`, or the environment's TOOLKIT_WEIGHTS."""
    given = config.getoption("parity_weights") or os.environ.get("TOOLKIT_WEIGHTS")
    return Path(given) if given else None


@pytest.fixture
def parity_record(request: pytest.FixtureRequest) -> Record:
    """What this test does; `check` and `oracle` write into it."""
    config = request.config
    given = config.getoption("parity_weights")
    weights = f" --parity-weights {shlex.quote(str(given))}" if given else ""
    command = f"pytest {shlex.quote(request.node.nodeid)}{weights} --parity-bisect"
    return request.node.stash.setdefault(RECORD, Record(request.node.nodeid, command))


@pytest.fixture
def parity_device(request: pytest.FixtureRequest) -> str:
    """The device of `--parity-device`."""
    return str(request.config.getoption("parity_device"))


@pytest.fixture
def ledger(request: pytest.FixtureRequest) -> Ledger:
    """The ledger of tolerances."""
    return request.config.stash[SESSION].ledger


@pytest.fixture
def oracle(request: pytest.FixtureRequest, parity_record: Record) -> Iterator[Oracle]:
    """`oracle(family, case, key=..., rung=...)`: a recorded case, its flags set until the test ends."""
    config = request.config
    weights = weights_folder(config)
    root = config.rootpath / config.getini("parity_oracles")
    with ExitStack() as stack:
        yield Oracle(root, [weights] if weights else [], parity_record, stack)


@pytest.fixture
def check(request: pytest.FixtureRequest, oracle: Oracle, ledger: Ledger, parity_record: Record) -> Check:
    """`check(case, tap, tensor)`: compare as the ledger says."""
    return Check(ledger, oracle, parity_record, request.config.getoption("parity_bisect"))


@pytest.fixture
def weights(request: pytest.FixtureRequest, parity_record: Record) -> Callable[[str], Path]:
    """`weights("tiny.en.safetensors")`: a path below `--parity-weights`; without it the test is "not run"."""
    folder = weights_folder(request.config)

    def find(name: str) -> Path:
        if folder is None or not (folder / name).exists():
            raise NotRun(f"no real weights {name!r} here: give --parity-weights DIR or set TOOLKIT_WEIGHTS")
        return folder / name

    return find


@pytest.fixture(scope="session")
def parity_loaded(request: pytest.FixtureRequest) -> dict[Any, Any]:
    """Ports that are loaded in this session."""
    return {}


@pytest.fixture(scope="session")
def parity_servers() -> Iterator[tuple[ExitStack, dict[Any, str]]]:
    """Servers that run in this session, and their addresses."""
    with ExitStack() as stack:
        yield stack, {}


def _asked(config: pytest.Config, hook: str, key: str, options: dict[str, Any]) -> Any:
    found = getattr(config.hook, hook)(key=key, options=options, config=config)
    if found is None:
        raise pytest.UsageError(f"no conftest.py or plugin implements {hook} for {key!r}")
    return found


@pytest.fixture
def port(request: pytest.FixtureRequest, parity_record: Record, parity_loaded: dict[Any, Any]) -> Callable[..., Any]:
    """`port(key, **options)`: the loaded model, by the project's `pytest_parity_load`."""

    def load(key: str, **options: Any) -> Any:
        parity_record.keys.append(key)
        identity = (key, repr(sorted(options.items())))
        if identity not in parity_loaded:
            parity_loaded[identity] = _asked(request.config, "pytest_parity_load", key, options)
        return parity_loaded[identity]

    return load


@pytest.fixture
def served(
    request: pytest.FixtureRequest, parity_record: Record, parity_servers: tuple[ExitStack, dict[Any, str]]
) -> Callable[..., str]:
    """`served(key, **options)`: the base URL of a running server, by the project's `pytest_parity_serve`."""
    stack, running = parity_servers

    def serve(key: str, **options: Any) -> str:
        parity_record.keys.append(key)
        identity = (key, repr(sorted(options.items())))
        if identity not in running:
            running[identity] = stack.enter_context(_asked(request.config, "pytest_parity_serve", key, options))
        return running[identity]

    return serve
