"""run.json: what was sent and what came back, event by event, with where and how it ran.

No number is stored twice: every figure in a report is computed from a `Run`, and nothing else is an input.
Times are seconds on the client's monotonic clock, counted from the start of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from serving.errors import SetupError

VERSION = 2

ChunkKind = Literal["content", "bare", "repeat"]
Outcome = Literal["ok", "failed", "dropped"]
FailureKind = Literal[
    "timeout",
    "status",
    "refused",
    "disconnected",
    "truncated",
    "in_band",
    "empty",
    "malformed",
    "interrupted",
    "left",
]


class Chunk(NamedTuple):
    """A piece of a response: `size` is audio samples a channel, or characters of text.

    "bare" carries no content (a WAV header, a role-only delta, a keep-alive); "repeat" has the bytes of the
    chunk before it, and is no new content either. `tokens` is the server's count for this chunk, 0 if unsaid.
    """

    t: float
    kind: ChunkKind
    size: int
    tokens: int = 0


class Sent(NamedTuple):
    """A piece of input that a live session appended: when it was due, when it was sent, its samples (0: the end)."""

    due: float
    t: float
    size: int


@dataclass(slots=True)
class Sound:
    """The PCM a response declared itself to be."""

    rate: int
    channels: int = 1


@dataclass(slots=True)
class Failure:
    """Why a request has no complete answer."""

    kind: FailureKind
    message: str = ""
    status: int | None = None


@dataclass(slots=True)
class Record:
    """One request. `scheduled` is when the load asked for it, `sent` when the client began to send it."""

    item: str
    scheduled: float
    sent: float
    head: float | None = None  # response headers
    chunks: list[Chunk] = field(default_factory=list)
    end: float | None = None
    outcome: Outcome = "dropped"
    failure: Failure | None = None
    sound: Sound | None = None
    input_seconds: float | None = None  # audio sent
    tokens: int | None = None  # the server's count of tokens made
    wanted: int | None = None  # tokens, where answers have a set length
    made: int | None = None  # pictures, films or items of output
    sends: list[Sent] = field(default_factory=list)  # what a live session appended
    part: str = ""  # of a mixed workload
    text: str | None = None
    reference: str | None = None  # what a clip says, where the workload knows
    digest: str | None = None  # sha256 of the content bytes

    def check(self) -> None:
        """Raise ValueError on what cannot be: time running backwards, a failure without a reason."""
        times = [self.scheduled, self.sent, *(c.t for c in self.chunks)]
        times += [self.end] if self.end is not None else []
        if any(a > b for a, b in pairwise(times)):
            raise ValueError(f"request {self.item!r}: times out of order: {times}")
        if self.end is None or (self.outcome == "ok") != (self.failure is None):
            raise ValueError(f"request {self.item!r}: {self.outcome} with end {self.end} and failure {self.failure}")
        if any(c.size < 0 or c.tokens < 0 for c in self.chunks):
            raise ValueError(f"request {self.item!r}: a chunk of negative size")


@dataclass(frozen=True, slots=True)
class Load:
    """How requests arrive: `closed` keeps `level` in flight; the others send about `level` a second."""

    kind: Literal["closed", "constant", "poisson", "ramp", "burst", "trace"]
    level: float
    detail: str = ""

    @property
    def name(self) -> str:
        level = f"c={self.level:g}" if self.kind == "closed" else f"{self.level:g}/s {self.kind}"
        return f"{level} {self.detail}".strip()


@dataclass(slots=True)
class Sample:
    """CPU seconds used so far by the whole machine, by this client and by the server it started."""

    t: float
    busy: float | None = None
    client: float | None = None
    server: float | None = None
    throttled: float | None = None
    server_rss: int | None = None  # bytes


@dataclass(slots=True)
class Check:
    """An answer given under load, compared with the same request alone."""

    item: str
    method: Literal["bytes", "snr", "wer"]
    value: float  # 1/0 for bytes, dB, or word error rate
    passed: bool
    detail: str = ""


@dataclass(slots=True)
class Point:
    """A load held up to `end`. Requests sent in [start, sent_until] are measured."""

    label: str
    load: Load
    repeat: int
    start: float
    sent_until: float
    end: float
    records: list[Record]
    samples: list[Sample] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)  # how late the client's own clock ticks came, seconds
    checks: list[Check] = field(default_factory=list)
    partial: bool = False
    cut: str = ""  # why it ended early, on purpose
    allotted: float | None = None  # seconds: its share of the run's time budget

    def __post_init__(self) -> None:
        if not self.start <= self.sent_until <= self.end:
            raise ValueError(f"window out of order: {self.start}, {self.sent_until}, {self.end}")
        for record in self.records:
            record.check()

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def measured(self) -> list[Record]:
        """Requests sent while measuring; warm-up and the load held after the last are told by time alone."""
        return [r for r in self.records if self.start <= r.sent <= self.sent_until]


@dataclass(slots=True)
class Work:
    """What was sent on a route."""

    name: str
    items: int  # distinct requests


@dataclass(slots=True)
class Config:
    """What was asked for."""

    models: Mapping[str, str]  # target's label -> the model's name there
    routes: Mapping[str, str]  # target's label -> its route
    workloads: Mapping[str, Work]  # by route
    seed: int
    requests: int | None  # measured at each point; None: the bench's rule
    warmup: int | None
    timeout: float
    steady: bool = False  # warm-up went on until the latency held still
    budget: float | None = None  # seconds for the whole run, split over its points
    cancel_every: int = 0  # every n-th client leaves, `cancel_after` seconds after it has asked
    cancel_after: float = 0.5
    slos: Mapping[str, float] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    verify: int = 0
    declared_rates: Mapping[str, int] = field(default_factory=dict)  # label -> the model's own sample rate


@dataclass(slots=True)
class Run:
    """A bench: its configuration, where it ran, and every event."""

    config: Config
    started: str  # ISO 8601, UTC
    client: dict[str, Any]
    servers: dict[str, dict[str, Any]]  # label -> what the server says of itself
    points: list[Point] = field(default_factory=list)
    partial: bool = False
    version: int = VERSION

    def save(self, path: Path) -> Path:
        """Write run.json, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(_RUN.dump_json(self))
        return part.replace(path)


def read_run(path: Path) -> Run:
    """Read run.json. `SetupError` says what is wrong with a file of another version or shape."""
    try:
        run = _RUN.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise SetupError(f"{path} is no run.json of version {VERSION}: {error}") from error
    if run.version != VERSION:
        raise SetupError(f"{path} has version {run.version}; this toolkit reads version {VERSION}.")
    return run


_RUN = TypeAdapter(Run)
