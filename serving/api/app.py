"""`build_app`: the ASGI application over loaded models."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from serving.api import openapi
from serving.api.boundary import Boundary
from serving.api.errors import on_http_exception
from serving.api.routes import (
    chat,
    generate,
    generate_ws,
    images,
    page,
    realtime,
    speech,
    system,
    transcriptions,
    voices,
)
from serving.api.run import endpoint
from serving.api.state import Api, Engine, Spec
from serving.core.contract import Card, LoadedModel
from serving.settings import ServerSettings

log = logging.getLogger("toolkit.api")
GROUPS = (page, system, transcriptions, speech, voices, chat, images, generate, generate_ws, realtime)
TITLE = "Multimodal toolkit"


def route_table() -> tuple[Spec, ...]:
    """Every route, in the order in which they are matched."""
    return tuple(spec for group in GROUPS for spec in group.ROUTES)


def build_app(
    loaded: Sequence[LoadedModel],
    settings: ServerSettings,
    engine: Engine | None = None,
    catalogue: Sequence[Card] = (),
    parity: Mapping[str, str] | None = None,
) -> FastAPI:
    """The application. `catalogue`: every known card, so that a 404 can say what would serve its route.

    `parity`: what the parity suite found of each key, for `/v1/models`.

    The engine starts with the application's lifespan, beside it: until it is ready, `/health/ready` is 503.
    """
    api = Api(loaded, settings, engine or _engine(loaded, settings), catalogue, route_table())
    api.parity = dict(parity or {})
    app = FastAPI(title=TITLE, lifespan=_lifespan, docs_url="/docs", redoc_url=None)
    app.state.api = api
    for spec in api.specs:
        if spec.method == "WS":
            app.add_api_websocket_route(spec.path, spec.handler)
            continue
        call = endpoint(spec) if spec.encodings else spec.handler
        app.add_api_route(spec.path, call, methods=[spec.method], summary=spec.summary, response_model=None)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_middleware(Boundary, api=api)
    app.openapi = lambda: openapi.document(app, api)  # type: ignore[method-assign]
    return app


def _engine(loaded: Sequence[LoadedModel], settings: ServerSettings) -> Engine:
    from serving.core.engine import Engine as Core  # brings the whole core; an application may bring its own engine

    made: Engine = Core(loaded, engine_settings(settings))
    return made


def engine_settings(settings: ServerSettings, **overrides: Any) -> Any:
    """What the server's settings say to the core: `serving.core.engine.EngineSettings`."""
    from serving.core.engine import EngineSettings

    return EngineSettings(
        queue=settings.queue_size,
        host_workers=settings.workers,
        lanes=settings.lanes,
        queue_timeout=settings.timeouts.queue,
        idle_input_timeout=settings.timeouts.idle_input,
        memory=settings.memory_bytes,
        **overrides,
    )


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    api: Api = app.state.api
    starting = asyncio.create_task(api.engine.start())
    starting.add_done_callback(_report_start)
    app.state.starting = starting
    try:
        yield
    finally:
        api.draining = True
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await api.engine.stop(0.0)
        api.pool.shutdown(wait=False, cancel_futures=True)


def _report_start(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        log.error("the engine did not start", exc_info=error)
