"""From names on a command line to an application: deployments, loaded models, engine; and the same in-process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import torch
from fastapi import FastAPI
from pydantic import ValidationError

from models import registry
from parity.harness.schema import Report, State
from serving.api.app import build_app, engine_settings
from serving.core.engine import Engine
from serving.errors import SetupError
from serving.settings import Deployment, ServerSettings, load_deployment
from toolkit.client import AsyncClient

WORST: Sequence[State] = ("fail", "stale", "refused", "not-run", "portable", "pass")


def deployments(keys: Sequence[str], *, experimental: bool = False, **overrides: Any) -> list[Deployment]:
    """The deployments of registry keys, config names or YAML files. Raises for unknown, double or unfinished keys."""
    found = [load_deployment(key, **overrides) for key in keys]
    for one in found:
        card = registry.card(one.model)
        if card.experimental and not experimental:
            raise SetupError(f'"{card.key}" is experimental: its port is not done. Add --experimental to serve it.')
        if one.device.startswith("cuda") and not torch.cuda.is_available():
            raise SetupError(
                f'{card.key}: device "{one.device}" is asked for, and no CUDA device is here.', param="device"
            )
    names = [one.model for one in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SetupError(f"One server holds a key once; given twice: {', '.join(twice)}.")
    return found


def build(
    chosen: Sequence[Deployment], settings: ServerSettings, progress: Callable[[str], None] = lambda _: None
) -> FastAPI:
    """Load each deployment's model and build the application over them."""
    loaded = []
    for one in chosen:
        progress(f"Loading {one.model} ({one.numerics}, {one.profile}, {one.device})")
        loaded.append(registry.load(one.model, one.to_options()))
    engine = Engine(loaded, engine_settings(settings))
    return build_app(loaded, settings, engine, tuple(registry.cards().values()), parity_states(chosen))


def parity_states(chosen: Sequence[Deployment]) -> dict[str, str]:
    """Key -> the worst state of its tests in the deployment's parity.json; a key that it does not hold is left out."""
    found: dict[str, str] = {}
    for one in chosen:
        if one.parity is None:
            continue
        try:
            report = Report.read(Path(one.parity))
        except OSError as error:
            raise SetupError(f"{one.parity}: {error.strerror}", param="parity") from None
        except ValidationError:
            raise SetupError(f"{one.parity} is not a parity.json of this version.", param="parity") from None
        states = [test.state for test in report.tests if one.model in test.keys]
        if states:
            found[one.model] = min(states, key=WORST.index)
    return found


@asynccontextmanager
async def local(chosen: Sequence[Deployment], progress: Callable[[str], None]) -> AsyncIterator[AsyncClient]:
    """A client of the application in this process: the same routes as a server, without a port."""
    app = build(chosen, ServerSettings(), progress)
    async with app.router.lifespan_context(app):
        await app.state.starting
        async with AsyncClient("http://local", transport=httpx.ASGITransport(app)) as client:
            yield client
