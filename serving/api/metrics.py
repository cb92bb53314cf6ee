"""What `/metrics` shows, through prometheus-client, in a registry of the app's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

FIRST = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 30, 60)
WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """Counters of the surface, and the engine's own numbers read when asked."""

    def __init__(self, engine_stats: Callable[[], Mapping[str, Any]]) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ("route", "model")
        self.requests = Counter("toolkit_requests", "Finished requests.", (*labels, "status"), registry=registry)
        self.seconds = Histogram(
            "toolkit_request_seconds",
            "From the first byte in to the last byte out.",
            labels,
            buckets=WHOLE,
            registry=registry,
        )
        self.first = Histogram(
            "toolkit_first_output_seconds",
            "From the first byte in to the first content out.",
            labels,
            buckets=FIRST,
            registry=registry,
        )
        self.gaps = Histogram(
            "toolkit_chunk_gap_seconds",
            "Between two chunks of a stream.",
            labels,
            buckets=FIRST,
            registry=registry,
        )
        self.underruns = Counter(
            "toolkit_underruns",
            "Audio chunks that came after a player would have run dry.",
            labels,
            registry=registry,
        )
        self.audio_in = Counter("toolkit_audio_in_seconds", "Seconds of audio received.", labels, registry=registry)
        self.audio_out = Counter("toolkit_audio_out_seconds", "Seconds of audio made.", labels, registry=registry)
        self.aborts = Counter("toolkit_aborts", "Requests cancelled by their client.", labels, registry=registry)
        self.in_flight = Gauge("toolkit_in_flight", "Requests being answered.", ("route",), registry=registry)
        registry.register(EngineStats(engine_stats))

    def text(self) -> bytes:
        return generate_latest(self.registry)


class EngineStats(Collector):
    """The engine's stats, flattened: `{"pools": {"kv": {"free": 3}}}` is `toolkit_engine{name="pools.kv.free"} 3`."""

    def __init__(self, stats: Callable[[], Mapping[str, Any]]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily("toolkit_engine", "Numbers of the serving core.", labels=("name",))
        for name, value in _flat(self._stats()):
            family.add_metric((name,), value)
        yield family


def _flat(stats: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, value in stats.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, int | float):
            yield name, float(value)
