"""What `/metrics` shows, through prometheus-client, in a registry of the app's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

FIRST = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 30, 60)
STEP = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)
WHOLE = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
POOL = ("model", "pool", "unit")
Family = type[CounterMetricFamily] | type[GaugeMetricFamily]
COUNTS = {  # of the engine's own, by model
    "prompt_tokens": "Positions of prompts that say what they are.",
    "reused_tokens": "Those of them that were computed before.",
    "preemptions": "Pieces that made room for others.",
}


class Trace(Protocol):
    """A step that has run: `serving.core.engine.Trace`."""

    @property
    def model(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def units(self) -> int: ...
    @property
    def seconds(self) -> float: ...


class Pool(Protocol):
    """A resource of a model that is shared out: pages or slots."""

    @property
    def model(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def free(self) -> int: ...
    @property
    def capacity(self) -> int: ...


class Metrics:
    """Counters of the surface, and the engine's own numbers read when asked.

    `traces` gives the engine's latest steps, oldest first; `rows` a model's slots.
    """

    def __init__(
        self,
        engine_stats: Callable[[], Mapping[str, Any]],
        traces: Callable[[], Iterable[Trace]] = tuple,
        pools: Sequence[Pool] = (),
        rows: Mapping[str, int] | None = None,
    ) -> None:
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
            "From the first byte in to the first bytes of a stream.",
            labels,
            buckets=FIRST,
            registry=registry,
        )
        self.first_audio = Histogram(
            "toolkit_first_audio_seconds",
            "From the first byte in to the first sound out of a stream.",
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
        self.tokens = Counter("toolkit_output_tokens", "Tokens of answers in text.", labels, registry=registry)
        self.aborts = Counter("toolkit_aborts", "Requests cancelled by their client.", labels, registry=registry)
        self.full_windows = Counter(
            "toolkit_full_windows",
            "Windows of sound heard again in full because what the trimmed one gave was not trusted.",
            labels,
            registry=registry,
        )
        self.in_flight = Gauge("toolkit_in_flight", "Requests being answered.", ("route",), registry=registry)
        self.steps = Steps(traces, registry)
        registry.register(EngineStats(engine_stats, pools, rows or {}))

    def text(self) -> bytes:
        self.steps.fold()
        return generate_latest(self.registry)


class Steps:
    """How long steps take, and on how much: `traces` gives the latest, oldest first."""

    def __init__(self, traces: Callable[[], Iterable[Trace]], registry: CollectorRegistry) -> None:
        nodes = ("model", "node")
        self._seconds = Histogram(
            "toolkit_step_seconds",
            "Time of a step on its lane, by the number of rows that it was padded to.",
            (*nodes, "bucket"),
            buckets=STEP,
            registry=registry,
        )
        self._rows = Counter("toolkit_step_rows", "Rows that steps worked on.", nodes, registry=registry)
        self._units = Counter("toolkit_step_units", "Tokens, frames or patches.", nodes, registry=registry)
        self._traces = traces
        self._last: Trace | None = None

    def fold(self) -> None:
        """Count the steps that have run since the last call. The engine keeps a few thousand: call it often."""
        fresh = list(takewhile(lambda one: one is not self._last, reversed(tuple(self._traces()))))
        for trace in fresh:
            labels = (trace.model, trace.node)
            self._seconds.labels(*labels, str(trace.size)).observe(trace.seconds)
            self._rows.labels(*labels).inc(trace.rows)
            self._units.labels(*labels).inc(trace.units)
        self._last = fresh[0] if fresh else self._last


class EngineStats(Collector):
    """The engine's own counts, read when asked; a count that the engine does not give is left out."""

    def __init__(self, stats: Callable[[], Mapping[str, Any]], pools: Sequence[Pool], rows: Mapping[str, int]) -> None:
        self._stats, self._pools, self._rows = stats, pools, rows

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield GaugeMetricFamily("toolkit_ready", "1 while requests are taken.", stats.get("state") == "ready")
        yield self._by_model("toolkit_waiting", "Pieces of requests that wait for a slot.", stats.get("waiting", {}))
        free = stats.get("free_slots", {})
        running = {key: rows - free[key] for key, rows in self._rows.items() if key in free}
        yield self._by_model("toolkit_running", "Pieces of requests that hold a slot.", running)
        yield self._by_model("toolkit_sessions", "Sessions that keep state.", stats.get("sessions", {}))
        for name, says in COUNTS.items():
            yield self._by_model(f"toolkit_{name}", says, stats.get(name, {}), CounterMetricFamily)
        yield self._by_node("toolkit_steps", "Steps launched.", stats.get("steps", {}))
        yield self._by_node("toolkit_capture_misses", "Steps larger than every bucket.", stats.get("misses", {}))
        yield from self._levels()

    def _by_model(self, name: str, says: str, values: Mapping[str, float], kind: Family = GaugeMetricFamily) -> Metric:
        family = kind(name, says, labels=("model",))
        for key, value in values.items():
            family.add_metric((key,), value)
        return family

    def _by_node(self, name: str, says: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(name, says, labels=("model", "node"))
        for key, value in values.items():
            model, _, node = key.rpartition(".")
            family.add_metric((model, node), value)
        return family

    def _levels(self) -> Iterator[Metric]:
        for name, says in (("free", "Free now"), ("capacity", "Free at rest")):
            family = GaugeMetricFamily(f"toolkit_pool_{name}", f"{says}, in a pool's unit.", labels=POOL)
            for pool in self._pools:
                family.add_metric((pool.model, pool.name, pool.unit), getattr(pool, name))
            yield family
