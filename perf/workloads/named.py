"""Workloads by name and parameters: `prompts:words=400,max_tokens=128`, or several mixed: `3*sentences+long-texts`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from perf.workloads.base import Workload
from perf.workloads.clips import recordings, tones
from perf.workloads.live import sessions, spoken
from perf.workloads.media import films, pictures, scenes, seen
from perf.workloads.mixed import mixed
from perf.workloads.text import phrases, prompts, sentences
from serving.errors import BadRequest, nearest

WORKLOADS: dict[str, Callable[..., Workload]] = {
    "sentences": sentences,
    "phrases": phrases,
    "paragraphs": partial(sentences, parts=(3, 3)),
    "long-texts": partial(sentences, parts=(4, 8)),
    "recordings": recordings,
    "tones": tones,
    "prompts": prompts,
    "pictures-seen": seen,
    "pictures": pictures,
    "films": films,
    "scenes": scenes,
    "sessions": sessions,
    "spoken": spoken,
}


def named(text: str, seed: int = 0) -> Workload:
    """The workload that a text names. Raises `BadRequest`, naming the nearest name or parameter."""
    terms = [_term(term) for term in text.split("+")]
    if len(terms) == 1:
        return _made(terms[0][1], seed)
    return mixed([(said, _made(said, seed), weight) for weight, said in terms], seed)


def _term(text: str) -> tuple[float, str]:
    """Weight and name: "3*prompts"."""
    weight, star, name = text.partition("*")
    try:
        return (float(weight), name.strip()) if star else (1.0, text.strip())
    except ValueError:
        raise BadRequest(f'A weight is a number before "*", got "{weight}".', param="workload") from None


def _made(text: str, seed: int) -> Workload:
    name, _, rest = text.partition(":")
    if name not in WORKLOADS:
        raise BadRequest(f'No workload "{name}".{nearest(name, WORKLOADS)}', param="workload")
    make = WORKLOADS[name]
    known = {n: p.default for n, p in inspect.signature(make).parameters.items() if n not in ("seed", "parts")}
    given: dict[str, Any] = {}
    for pair in rest.split(",") if rest else ():
        key, _, value = pair.partition("=")
        if key not in known:
            raise BadRequest(f'The workload {name} has no "{key}".{nearest(key, known)}', param="workload")
        given[key] = _value(name, key, value, type(known[key]))
    return make(seed=seed, **given)


def _value(name: str, key: str, value: str, kind: type) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise BadRequest(f'{name}: {key} is {kind.__name__}, got "{value}".', param="workload") from None
