"""What one application holds: settings, loaded models, the engine, and the route table that the contract tests read."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from pydantic import BaseModel

from serving.api.limits import Seats
from serving.api.media.remote import Fetcher
from serving.api.metrics import Metrics, Trace
from serving.api.pools import pools_of
from serving.api.voices import VoiceStore
from serving.core.contract import Card, LoadedModel, Packed, Task
from serving.errors import BadRequest, EngineDead, NotFound, Overloaded, nearest
from serving.settings import Limits, ServerSettings

T = TypeVar("T")


class Output(Protocol):
    """One presented item of a client port."""

    @property
    def port(self) -> str: ...
    @property
    def value(self) -> Any: ...


class Handle(Protocol):
    """A submitted request: its outputs in order, its client streams, its end."""

    def __aiter__(self) -> Any: ...
    async def __anext__(self) -> Output: ...
    async def __aenter__(self) -> Handle: ...
    async def __aexit__(self, *exc: Any) -> Any: ...
    async def append(self, port: str, packed: Packed) -> None: ...
    async def finish(self, port: str) -> None: ...
    def cancel(self) -> None: ...


class Engine(Protocol):
    """The serving core, as the API sees it."""

    @property
    def state(self) -> str: ...  # "starting" | "ready" | "draining" | "dead"
    @property
    def reason(self) -> str | None: ...
    async def submit(
        self,
        key: str,
        task: Task,
        *,
        request_id: str,
        seed: int | None = None,
        session: str | None = None,
        live: bool = False,
    ) -> Handle: ...
    @property
    def traces(self) -> Iterable[Trace]: ...  # the latest steps, oldest first
    def stats(self) -> Mapping[str, Any]: ...
    async def start(self) -> None: ...
    async def stop(self, drain_seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Spec:
    """One route: what it needs of a model, what it reads, who answers."""

    path: str
    handler: Callable[..., Coroutine[Any, Any, Any]]
    method: Literal["GET", "POST", "DELETE", "WS"] = "GET"
    kind: str | None = None  # the task that a model must have; None: no model is used
    schema: type[BaseModel] | None = None  # a `fields.Schema` where a model is used
    encodings: tuple[Literal["json", "form"], ...] = ()
    files: Mapping[str, bool] = field(default_factory=dict)  # file field -> required
    summary: str = ""
    able: Callable[[type[BaseModel]], bool] = lambda knobs: True  # whether a model with these knobs can serve it

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\{\w+\}", "[^/]+", self.path))

    def body_limit(self, limits: Limits) -> int:
        return limits.upload_bytes if "form" in self.encodings else limits.json_bytes


def knobs_of(model: LoadedModel | Card, kind: str) -> type[BaseModel]:
    """The pydantic model of a task's knobs."""
    card = model if isinstance(model, Card) else model.card
    knobs = card.tasks[kind]
    assert issubclass(knobs, BaseModel), f"{card.key}: the knobs of {kind} are not a pydantic model"
    return knobs


def takes(knobs: type[BaseModel]) -> frozenset[str]:
    """Names of the inputs that a task understands, from `TAKES` of its knobs; text and nothing else by default."""
    return frozenset(getattr(knobs, "TAKES", ("text",)))


class Api:
    """Everything that a handler may use; `request.app.state.api`."""

    def __init__(
        self,
        loaded: Sequence[LoadedModel],
        settings: ServerSettings,
        engine: Engine,
        catalogue: Sequence[Card],
        specs: Sequence[Spec],
    ) -> None:
        self.settings, self.engine, self.catalogue = settings, engine, catalogue
        self.models = {model.card.key: model for model in loaded}
        self.seats = Seats(sum(model.options.rows for model in loaded), settings.queue_size)
        rows = {key: model.options.rows for key, model in self.models.items()}
        self.metrics = Metrics(engine.stats, lambda: engine.traces, pools_of(loaded), rows)
        self.pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="media")
        self.started = int(time.time())
        self.specs = tuple(specs)
        self.fetcher = Fetcher(settings.media)
        self.voices = VoiceStore(settings.media.voices, settings.limits)
        self.parity: dict[str, str] = {}  # key -> what the parity suite found
        self.draining = False

    def find(self, method: str, path: str) -> Spec | None:
        """The route that takes this method at this path, else any route at this path."""
        at = [spec for spec in self.specs if spec.path == path or spec.pattern.fullmatch(path)]
        return next((spec for spec in at if spec.method == method), at[0] if at else None)

    def require_ready(self) -> None:
        """Raise the 503 of an engine that takes no requests now."""
        if self.engine.state == "dead":
            raise EngineDead(f"The engine has stopped: {self.engine.reason or 'no reason given'}.")
        if self.draining or self.engine.state == "draining":
            raise Overloaded("The server is shutting down.", code="draining")
        if self.engine.state != "ready":
            raise Overloaded("The server is still starting.", code="starting")

    def model(self, name: str, spec: Spec) -> LoadedModel:
        """The loaded model of this name, if the route can use it. Raises 404 (no such model) or 400 (wrong task)."""
        able = [key for key, model in self.models.items() if self.serves(model.card, spec)]
        if not able:
            raise self._unserved(spec)
        if name not in self.models:
            raise NotFound(f'No model "{name}" is loaded.{nearest(name, able)}', param="model", code="model_not_found")
        if name not in able:
            message = f'Model "{name}" does not serve {spec.path}. Models that do: {", ".join(sorted(able))}.'
            raise BadRequest(message, param="model", code="unsupported_model")
        return self.models[name]

    def require_served(self, spec: Spec) -> None:
        """Raise the 404 of a route that no loaded model serves, before its body is read."""
        if not any(self.serves(model.card, spec) for model in self.models.values()):
            raise self._unserved(spec)

    def serves(self, card: Card, spec: Spec) -> bool:
        """Whether a model of this card can answer this route."""
        return spec.kind is not None and spec.kind in card.tasks and spec.able(knobs_of(card, spec.kind))

    def _unserved(self, spec: Spec) -> NotFound:
        would = sorted(card.key for card in self.catalogue if self.serves(card, spec))
        hint = f" Start the server with one of: {', '.join(would)}." if would else ""
        return NotFound(f"No loaded model serves {spec.path}.{hint}", code="route_not_served")
