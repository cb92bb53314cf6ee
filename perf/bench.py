"""`run_bench`: what `toolkit bench` asks for, in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx

from models.registry import card
from perf import launch, session
from perf.arrivals import closed
from perf.client.routes import Target
from perf.launch import Launch
from perf.peers import peer
from perf.schema import Load, Run, read_run
from perf.session import Say, Settings
from perf.sweep import KneeSweep, Planner, RateSearch
from perf.workloads import Workload, chosen, named
from serving.errors import BadRequest, nearest

# The bench's routes by the names that people use for them: OpenAI's paths and the task kinds of the contract.
ROUTES = {
    "speech": "speech",
    "speak": "speech",
    "transcription": "transcription",
    "transcriptions": "transcription",
    "transcribe": "transcription",
    "chat": "chat",
    "image": "image",
    "images": "image",
    "video": "video",
    "videos": "video",
    "generate": "generate",
    "actions": "generate",
    "live": "live",
    "realtime": "realtime",
}
VERIFIED = 8  # answers a point that `verify=True` compares


def run_bench(
    *,
    keys: Sequence[str] = (),
    url: str | None = None,
    route: str | None = None,
    model: str | None = None,
    concurrency: Sequence[int] = (1, 8),
    rate: Sequence[float] = (),
    budget: float | None = None,
    requests: int | None = None,
    warmup: int | None = None,
    seconds: float | None = None,
    repeats: int = 1,
    peers: Sequence[str] = (),
    workload: str | Path | None = None,
    slos: Mapping[str, float] | None = None,
    body: Mapping[str, Any] | None = None,
    timeout: float = 120.0,
    ignore_eos: bool = False,
    cancel_every: int = 0,
    cancel_after: float = 0.5,
    steady: bool = False,
    verify: bool | int = False,
    seed: int = 0,
    out: Path | None = None,
    resume: bool = False,
    find: Literal["knee", "rate"] | None = None,
    experimental: bool = False,
    serve_options: Sequence[str] = (),
    api_key: str | None = None,
    say: Say = lambda line: None,
) -> Run:
    """Measure registry keys (a server is started for each), a server at `url`, and peers, in one run.

    `concurrency`: closed loops; `rate`: open Poisson loops instead, requests a second. `seconds`, `timeout`: of a
    point, of a request. `slos`: metric -> limit. `body`: fields added to each request, None to leave one out;
    `ignore_eos`: have answers run to their set length, by the body's field of that name. `steady`: warm up until the
    latency no longer moves, for at most `perf.loadgen.MOST_WARMUP` times `warmup`. `budget`: seconds for the whole
    run; its points share them. Keys of different routes have their own workloads, and peers go with their route.
    `workload`: a folder of recordings, a .jsonl file or a name (`perf.workloads.named`). `cancel_every`: every n-th
    client leaves after `cancel_after` seconds. `resume`: continue out/run.json. `find`: instead of set
    loads, sweep the concurrency to the knee, or search for the highest rate that holds the `slos`.

    Raises `BadRequest` for what does not fit together and `SetupError` where a server does not start. Ctrl-C
    returns what there is, marked partial.
    """
    options = [*serve_options, *(["--experimental"] if experimental else [])]
    targets, routes = targets_of(keys, options, url, route, model, api_key, peers)
    loads = [Load("poisson", r) for r in rate] or [closed(c) for c in concurrency]
    settings = Settings(
        requests=requests, warmup=warmup, seconds=seconds, repeats=repeats, timeout=timeout, seed=seed, slos=slos or {},
        body={**({"ignore_eos": True} if ignore_eos else {}), **(body or {})}, steady=steady,
        verify=VERIFIED if verify is True else int(verify), budget=budget,
        cancel_every=cancel_every, cancel_after=cancel_after,
    )  # fmt: skip
    earlier = read_run(out / "run.json") if resume and out else None
    planner = partial(_planner, find, settings.slos) if find else None
    items = _workloads(routes, workload, seed)
    return session.measure(targets, items, loads, settings, out=out, resume=earlier, say=say, planner=planner)


def targets_of(
    keys: Sequence[str],
    options: Sequence[str],
    url: str | None,
    route: str | None,
    model: str | None,
    api_key: str | None,
    peers: Sequence[str],
) -> tuple[list[Target | Launch], dict[str, str]]:
    """What is measured, and the route of each label: keys with their serving `options`, a server, peers."""
    listed = served(url, api_key) if url and (model is None or (route is None and not keys)) else {}
    name = model or (_only(listed, url) if url else None)
    wanted = routes_of(keys, route if route or keys or not name else _only_route(name, listed))
    targets: list[Target | Launch] = [launch.toolkit(key, *options) for key in keys]
    routes = {key: wanted[key] for key in keys}
    if url:
        targets.append(Target(url, name or "", label=model or "server", api_key=api_key))
        routes[model or "server"] = next(iter(wanted.values()))
    for one in peers:
        label = f"{one} (peer)" if one in routes else one
        started, routes[label] = peer(one, set(wanted.values()), label)
        targets.append(started)
    return targets, routes


def _workloads(routes: Mapping[str, str], what: str | Path | None, seed: int) -> dict[str, Workload]:
    """A workload for each label, the same for all of one route: the one that is asked for, or the route's default.

    Where there are several routes, a workload's name says for which it is; files could be for any.
    """
    used = set(routes.values())
    if what and len(used) > 1 and (Path(what).exists() or str(what).endswith(".jsonl")):
        raise BadRequest("A workload of one's own is for one route; bench the keys apart.", param="workload")
    mine = named(str(what), seed).route if what and len(used) > 1 else None
    if mine and mine not in used:
        raise BadRequest(f"The workload {what} is for {mine}, not for {' or '.join(sorted(used))}.", param="workload")
    made = {route: chosen(what if mine in (None, route) else None, route, seed) for route in used}
    return {label: made[route] for label, route in routes.items()}


def _planner(find: Literal["knee", "rate"], slos: Mapping[str, float], route: str) -> Planner:
    return {"knee": KneeSweep, "rate": RateSearch}[find](route, slos)


def route_of(keys: Sequence[str], route: str | None) -> str:
    """The route that is asked for, or the one that every key serves."""
    found = set(routes_of(keys, route).values())
    if len(found) != 1:
        raise BadRequest(f"The keys serve more than one route ({', '.join(sorted(found))}); name one.", param="route")
    return found.pop()


def routes_of(keys: Sequence[str], route: str | None) -> dict[str, str]:
    """Each key's route: the one that is asked for, or the only one that the key serves. Without keys: {"": route}."""
    if route is not None:
        if route not in ROUTES:
            raise BadRequest(f'No bench for route "{route}".{nearest(route, ROUTES)}', param="route")
        return dict.fromkeys(keys or ("",), ROUTES[route])
    if not keys:
        raise BadRequest(f"Say which route to bench: {', '.join(sorted({*ROUTES.values()}))}.", param="route")
    return {key: _route_of_key(key) for key in keys}


def _route_of_key(key: str) -> str:
    able = sorted({ROUTES[task] for task in card(key).tasks if task in ROUTES})
    if len(able) != 1:
        raise BadRequest(f"{key} serves {', '.join(able) or 'no route of the bench'}; name one.", param="route")
    return able[0]


def served(url: str, api_key: str | None = None) -> dict[str, list[str]]:
    """The models that a server lists, each with the routes that it says they have."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        listed = httpx.get(url.rstrip("/") + "/v1/models", headers=headers).raise_for_status().json()["data"]
        found = {str(m["id"]): (m.get("capabilities") or {}).get("tasks") or [] for m in listed}
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise BadRequest(
            f"{url} does not list its models ({error}): name them, --route and --model.", param="url"
        ) from error
    return {name: sorted({ROUTES[task] for task in tasks if task in ROUTES}) for name, tasks in found.items()}


def _only(listed: Mapping[str, list[str]], url: str) -> str:
    if len(listed) != 1:
        known = ", ".join(sorted(listed)) or "none"
        raise BadRequest(f"{url} serves {len(listed)} models; name one of: {known}.", param="model")
    return next(iter(listed))


def _only_route(name: str, listed: Mapping[str, list[str]]) -> str | None:
    """The route of a served model, where it has exactly one."""
    routes = listed.get(name, [])
    return routes[0] if len(routes) == 1 else None
