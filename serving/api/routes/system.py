"""What a server says of itself: health, models, settings, metrics."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from serving.api.state import Api, Spec, knobs_of, takes
from serving.core.contract import PORTS, LoadedModel
from serving.errors import NotFound, Overloaded, nearest


async def live(request: Request) -> Response:
    """The process answers."""
    return JSONResponse({"status": "live"})


async def ready(request: Request) -> Response:
    """200 when requests are taken; 503 with the reason while starting, draining, or after the engine has died."""
    api = _api(request)
    try:
        api.require_ready()
    except Overloaded as error:
        body = {"status": error.code, "reason": error.message}
        return JSONResponse(body, 503, {"retry-after": str(error.retry_after)})
    return JSONResponse({"status": "ready"})


async def models(request: Request) -> Response:
    """The loaded models and what each can do."""
    api = _api(request)
    return JSONResponse({"object": "list", "data": [describe(api, model) for model in api.models.values()]})


async def model(request: Request) -> Response:
    """One loaded model."""
    api, name = _api(request), request.path_params["model"]
    if name not in api.models:
        message = f'No model "{name}" is loaded.{nearest(name, api.models)}'
        raise NotFound(message, param="model", code="model_not_found")
    return JSONResponse(describe(api, api.models[name]))


def describe(api: Api, model: LoadedModel) -> dict[str, Any]:
    """OpenAI's model object, and under `capabilities` what this model serves."""
    card = model.card
    return {
        "id": card.key,
        "object": "model",
        "created": api.started,
        "owned_by": card.family,
        "title": card.title,
        "licence": card.licence,
        "source": "path" if model.options.weights else card.source,
        "experimental": card.experimental,
        "parity": api.parity.get(card.key, "not run"),
        "capabilities": {
            "tasks": sorted(card.tasks),
            "routes": sorted(spec.path for spec in api.specs if api.serves(card, spec)),
            "inputs": {kind: sorted(takes(knobs_of(card, kind))) for kind in card.tasks},
            "output_ports": {kind: sorted(PORTS.get(kind, {})) for kind in card.tasks},
            "knobs": {kind: knobs_of(model, kind).model_json_schema() for kind in card.tasks},
            "sample_rate": card.sample_rate,
            "languages": list(card.languages),
        },
    }


async def server_info(request: Request) -> Response:
    """Limits, timeouts and how each model runs; nothing secret."""
    api = _api(request)
    settings = api.settings
    return JSONResponse(
        {
            "state": api.engine.state,
            "reason": api.engine.reason,
            "limits": settings.limits.model_dump(mode="json"),
            "timeouts": settings.timeouts.model_dump(mode="json"),
            "queue_size": settings.queue_size,
            "max_in_server": api.seats.capacity,
            "in_server": api.seats.taken,
            "models": {key: _options(model) for key, model in api.models.items()},
            "engine": api.engine.stats(),
        }
    )


def _options(model: LoadedModel) -> dict[str, Any]:
    options = model.options
    return {
        "device": options.device,
        "profile": options.profile,
        "numerics": options.numerics,
        "capture": options.capture,
        "max_concurrent_requests": options.rows,
        "source": "path" if options.weights else model.card.source,
    }


async def metrics(request: Request) -> Response:
    """Prometheus text."""
    return Response(_api(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _api(request: Request) -> Api:
    api: Api = request.app.state.api
    return api


ROUTES = (
    Spec("/health", ready, summary="The same as /health/ready"),
    Spec("/health/live", live, summary="The process answers"),
    Spec("/health/ready", ready, summary="Requests are taken"),
    Spec("/v1/models", models, summary="The loaded models"),
    Spec("/v1/models/{model}", model, summary="One loaded model"),
    Spec("/v1/server_info", server_info, summary="Limits, timeouts, numerics"),
    Spec("/metrics", metrics, summary="Prometheus metrics"),
)
