"""What speaks against a point's numbers. `invalid`: do not use them; `warning`: read them knowing this."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from perf.metrics.base import content
from perf.metrics.totals import counts, distinct, failures
from perf.schema import Config, Point

LAG_OF_GAP = 0.05  # p99 of send lag, as a share of the mean gap between requests
LATE_OF_PIECE = 0.25  # p99 of how late a live session's pieces are sent, as a share of the time between them
STALL = 0.005  # seconds; and
STALL_OF_LATENCY = 0.05  # as a share of the median first response
THROTTLED = 0.01  # share of the window
FOREIGN = 0.10  # share of the machine's CPU
UNSENT = 0.95  # achieved over offered
REUSE = 4  # times that one prompt may be sent
MACHINE = frozenset({"foreign_load", "throttled", "client_stall", "generator_lag"})  # the fault of neither server


@dataclass(frozen=True, slots=True)
class Flag:
    level: Literal["invalid", "warning"]
    code: str
    message: str


Flags = Iterator[Flag]


def _invalid(code: str, message: str) -> Flag:
    return Flag("invalid", code, message)


def _warning(code: str, message: str) -> Flag:
    return Flag("warning", code, message)


def _answers(point: Point, config: Config) -> Flags:
    found = counts(point)
    if point.partial:
        yield _invalid("partial", f"interrupted after {found.ok} answers")
    if point.cut:
        yield _warning("cut", f"ended early: {point.cut}")
    if not found.ok:
        yield _invalid("no_answers", f"no request of {found.sent} succeeded")
    elif found.ok < found.sent:
        why = ", ".join(f"{reason}: {n}" for reason, n in failures(point).most_common(3))
        yield _warning("failures", f"{found.sent - found.ok} of {found.sent} requests have no answer ({why})")


def _send_lag(point: Point, config: Config) -> Flags:
    """An open loop that sends late measures another load than it says."""
    sent = point.measured
    if point.load.kind == "closed" or len(sent) < 2:
        return
    gap = (sent[-1].scheduled - sent[0].scheduled) / (len(sent) - 1)
    lag = float(np.percentile([r.sent - r.scheduled for r in sent], 99))
    if gap > 0 and lag > LAG_OF_GAP * gap:
        yield _invalid("generator_lag", f"p99 of send lag {1e3 * lag:.1f} ms is over 5 % of the gap {gap:.3g} s")


def _live_lag(point: Point, config: Config) -> Flags:
    """A live session whose input comes late is not live."""
    sends = [s for r in point.measured for s in r.sends if s.size]
    gaps = [b.due - a.due for r in point.measured for a, b in pairwise(r.sends) if b.size]
    if not sends or not gaps:
        return
    late, usual = float(np.percentile([s.t - s.due for s in sends], 99)), float(np.median(gaps))
    if late > LATE_OF_PIECE * usual:
        yield _invalid(
            "generator_lag", f"pieces of input were sent {1e3 * late:.1f} ms late (p99), one each {usual:.3g} s"
        )


def _short(point: Point, config: Config) -> Flags:
    """Answers were to have a set length; a server that stops earlier did less work than another."""
    asked = [r for r in point.measured if r.outcome == "ok" and r.wanted and r.tokens is not None]
    short = sum((r.tokens or 0) < (r.wanted or 0) for r in asked)
    if short:
        yield _warning("short_answers", f"{short} of {len(asked)} answers are shorter than their set length")


def _stall(point: Point, config: Config) -> Flags:
    """The client's own loop woke late: its times of arrival are late too."""
    firsts = [content(r)[0].t - r.sent for r in point.measured if r.outcome == "ok" and content(r)]
    if not point.stalls or not firsts:
        return
    late, usual = float(np.percentile(point.stalls, 99)), float(np.median(firsts))
    if late > STALL and late > STALL_OF_LATENCY * usual:
        yield _invalid("client_stall", f"the client woke {1e3 * late:.1f} ms late (p99); first responses {usual:.3g} s")


def _machine(point: Point, config: Config, cores: int) -> Flags:
    if len(point.samples) < 2:
        return
    first, last = point.samples[0], point.samples[-1]
    seconds = last.t - first.t
    if first.throttled is not None and last.throttled is not None:
        share = (last.throttled - first.throttled) / seconds if seconds else 0.0
        if share > THROTTLED:
            yield _invalid(
                "throttled", f"the container was stopped by its CPU quota for {100 * share:.1f} % of the time"
            )
    foreign = foreign_load(point, cores)
    if foreign is not None and foreign > FOREIGN:
        yield _invalid("foreign_load", f"other programs used {100 * foreign:.0f} % of the machine's CPU")


def foreign_load(point: Point, cores: int) -> float | None:
    """Share of the machine used by neither client nor server; None where the server's use is not known."""
    if len(point.samples) < 2:
        return None
    a, b = point.samples[0], point.samples[-1]
    if a.busy is None or b.busy is None or a.server is None or b.server is None or b.t <= a.t:
        return None
    ours = (b.client or 0) - (a.client or 0) + b.server - a.server
    return max(0.0, b.busy - a.busy - ours) / ((b.t - a.t) * cores)


def _rate(point: Point, config: Config) -> Flags:
    """A server that cannot keep up with an open loop has no steady state."""
    sent = point.measured
    if point.load.kind == "closed" or len(sent) < 2 or sent[-1].sent <= sent[0].sent:
        return
    ratio = (sent[-1].scheduled - sent[0].scheduled) / (sent[-1].sent - sent[0].sent)
    if ratio < UNSENT:
        yield _warning("rate_missed", f"only {100 * ratio:.0f} % of the offered rate was sent")


def _sound(point: Point, config: Config) -> Flags:
    rates = {r.sound.rate for r in point.measured if r.sound}
    declared = config.declared_rates.get(point.label)
    if declared and rates - {declared}:
        yield _invalid("sample_rate", f"audio came at {sorted(rates)} Hz; the model declares {declared}")
    repeats = sum(c.kind == "repeat" for r in point.measured for c in r.chunks)
    if repeats:
        yield _warning("repeats", f"{repeats} audio chunks were sent twice; they count once")


def _prompts(point: Point, config: Config) -> Flags:
    different, n = distinct(point), len(point.measured)
    if different and n > REUSE * different:
        yield _warning("few_prompts", f"{different} distinct requests among {n}: caches may help the server")


def _verified(point: Point, config: Config) -> Flags:
    wrong, n = sum(not c.passed for c in point.checks), len(point.checks)
    if wrong:
        yield _invalid("wrong_answers", f"{wrong} of {n} answers differ from the same request alone")
    elif config.verify and not n:
        yield _warning("unverified", "no answer of this point could be verified")


_CHECKS: tuple[Callable[[Point, Config], Flags], ...] = (
    _answers,
    _verified,
    _sound,
    _send_lag,
    _live_lag,
    _short,
    _stall,
    _rate,
    _prompts,
)


def flags(point: Point, config: Config, cores: int) -> list[Flag]:
    """All that speaks against this point, what invalidates it first. `cores`: of the client's machine."""
    found = [flag for check in _CHECKS for flag in check(point, config)]
    found += _machine(point, config, cores)
    return sorted(found, key=lambda flag: flag.level)


def fit(point: Point, config: Config, cores: int) -> bool:
    """Whether the machine left the point alone. What its server does never makes it unfit, however bad."""
    return not any(flag.code in MACHINE for flag in flags(point, config, cores) if flag.level == "invalid")


def used(points: Sequence[Point], config: Config, cores: int) -> list[Point]:
    """Of the repeats at a load: those that count. Where the machine spoilt all of them, all, marked invalid."""
    return [p for p in points if fit(p, config, cores)] or list(points)
