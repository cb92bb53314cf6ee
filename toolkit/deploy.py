"""From names on a command line to an application: deployments, loaded models, engine; and the same in-process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import torch
from fastapi import FastAPI

from models import registry
from serving.api.app import build_app, engine_settings
from serving.core.engine import Engine
from serving.errors import SetupError
from serving.settings import Deployment, ServerSettings, load_deployment
from toolkit.client import AsyncClient


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
    return build_app(loaded, settings, engine, tuple(registry.cards().values()))


@asynccontextmanager
async def local(chosen: Sequence[Deployment], progress: Callable[[str], None]) -> AsyncIterator[AsyncClient]:
    """A client of the application in this process: the same routes as a server, without a port."""
    app = build(chosen, ServerSettings(), progress)
    async with app.router.lifespan_context(app):
        await app.state.starting
        async with AsyncClient("http://local", transport=httpx.ASGITransport(app)) as client:
            yield client
