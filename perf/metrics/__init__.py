"""The bench's metrics, their definitions frozen: one class each. `for_route` says which apply to a route."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perf.metrics.audio import (
    C50,
    C100,
    C200,
    AudioDuration,
    AudioThroughput,
    FirstShare,
    GenerationFactor,
    RealTimeFactor,
    Underrun,
)
from perf.metrics.base import Metric, Result, Spread
from perf.metrics.goodput import Goodput
from perf.metrics.latency import ChunkGap, EndToEnd, FirstAudio, FirstContent, TimePerToken, TokenGap
from perf.metrics.live import Final, FirstAfterEnd, Lag
from perf.metrics.made import FilmThroughput, FirstOutput, OutputThroughput, PictureThroughput
from perf.metrics.quality import WordErrorRate
from perf.metrics.totals import AchievedRate, OfferedRate, RequestThroughput, SuccessRate, TokenThroughput
from perf.schema import Config, Point
from serving.errors import BadRequest, nearest

_ALWAYS: tuple[type[Metric], ...] = (SuccessRate, RequestThroughput, OfferedRate, AchievedRate, EndToEnd)
ROUTES: Mapping[str, tuple[type[Metric], ...]] = {
    "speech": (
        FirstAudio,
        FirstShare,
        ChunkGap,
        RealTimeFactor,
        GenerationFactor,
        AudioThroughput,
        AudioDuration,
        Underrun,
        C50,
        C100,
        C200,
    ),
    "transcription": (FirstContent, RealTimeFactor, AudioThroughput, AudioDuration, WordErrorRate),
    "chat": (FirstContent, ChunkGap, TokenGap, TimePerToken, TokenThroughput),
    "image": (PictureThroughput,),
    "video": (FilmThroughput,),
    "generate": (FirstOutput, ChunkGap, OutputThroughput),
    "live": (Lag, Final, OutputThroughput),
    "realtime": (FirstAfterEnd, Final, AudioThroughput, AudioDuration, WordErrorRate),
}
HEADLINE = {
    "speech": "audio_throughput",
    "transcription": "audio_throughput",
    "chat": "token_throughput",
    "image": "picture_throughput",
    "video": "film_throughput",
    "generate": "output_throughput",
    "live": "output_throughput",
    "realtime": "audio_throughput",
}
FIRST = {
    "speech": "ttfa",
    "transcription": "e2e",
    "chat": "ttft",
    "image": "e2e",
    "video": "e2e",
    "generate": "ttfo",
    "live": "lag",
    "realtime": "final",
}


def for_route(route: str, slos: Mapping[str, float] | None = None) -> dict[str, Metric]:
    """Name -> metric of a route, with goodput under `slos`."""
    if route not in ROUTES:
        raise BadRequest(f'No bench for route "{route}".{nearest(route, ROUTES)}', param="route")
    found: dict[str, Metric] = {m.name: m() for m in (*_ALWAYS, *ROUTES[route])}
    spreads = {name: m for name, m in found.items() if isinstance(m, Spread)}
    found["goodput"] = Goodput.of(slos or {}, spreads)
    return found


def objectives(slos: Mapping[str, float], routes: Iterable[str]) -> dict[str, dict[str, float]]:
    """For each route the limits that it knows; one that none of them knows is an error naming the nearest."""
    known = {route: for_route(route) for route in routes}
    for name in slos:
        if not any(isinstance(metrics.get(name), Spread) for metrics in known.values()):
            for_route(next(iter(known)), {name: slos[name]})
    return {route: {n: limit for n, limit in slos.items() if n in metrics} for route, metrics in known.items()}


def for_run(config: Config, route: str) -> dict[str, Metric]:
    """The metrics of a route of a run, under the run's objectives."""
    return for_route(route, objectives(config.slos, config.routes.values())[route])


def evaluate(point: Point, route: str, slos: Mapping[str, float] | None = None) -> dict[str, Result]:
    """Every metric of the route at this point."""
    return {name: metric.result(point) for name, metric in for_route(route, slos).items()}
