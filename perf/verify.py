"""Answers that were given under load, compared with the same requests alone on the same server."""

from __future__ import annotations

import random

import numpy as np

from perf.client.clock import Clock
from perf.client.http import RequestFailed
from perf.client.routes import Sender
from perf.schema import Check, Point, Record
from perf.text import normaliser, word_error_rate
from perf.workloads.base import Item

SNR_DB = 30.0  # audio that is not equal byte for byte must be this close


def choose(items: list[Item], n: int, seed: int) -> set[str]:
    """Ids of the items whose answers are kept: a few for each that will be compared, as not all get sent."""
    return {item.id for item in random.Random(seed).sample(items, min(len(items), 4 * n))} if n else set()


async def verify(point: Point, sender: Sender, items: list[Item], n: int, clock: Clock) -> list[Check]:
    """Send up to `n` of the measured requests again, one at a time, and compare."""
    by_id = {item.id: item for item in items}
    kept = {r.item: r for r in point.measured if r.outcome == "ok" and r.digest in sender.outputs}
    found = [await _compare(kept[name], sender, by_id[name], clock) for name in sorted(kept)[:n]]
    return [check for check in found if check is not None]


async def _compare(loaded: Record, sender: Sender, item: Item, clock: Clock) -> Check | None:
    """None where the request fails alone: that says nothing of the answer under load."""
    alone = Record(item.id, clock(), clock())
    try:
        await sender(item, alone)
    except RequestFailed:
        return None
    if alone.digest == loaded.digest:
        return Check(item.id, "bytes", 1.0, True)
    if loaded.sound:
        return _audio(item.id, sender.outputs[loaded.digest or ""], sender.outputs[alone.digest or ""])
    rate = word_error_rate([alone.text or ""], [loaded.text or ""])
    return Check(item.id, "wer", rate, rate == 0.0, normaliser()[0])


def _audio(item: str, loaded: bytes, alone: bytes) -> Check:
    if len(loaded) != len(alone):
        return Check(item, "snr", 0.0, False, f"{len(loaded)} bytes under load, {len(alone)} alone")
    snr = signal_to_noise(np.frombuffer(alone, "<i2"), np.frombuffer(loaded, "<i2"))
    return Check(item, "snr", snr, snr >= SNR_DB, f"at least {SNR_DB:g} dB")


def signal_to_noise(reference: np.ndarray, other: np.ndarray) -> float:
    """10 log10(sum x^2 / sum (x - y)^2) in dB; 200 for equal signals. int16 or float [T]"""
    x, y = reference.astype(np.float64), other.astype(np.float64)
    noise = float(((x - y) ** 2).sum())
    return 10 * float(np.log10(max(float((x**2).sum()), 1e-12) / noise)) if noise else 200.0
