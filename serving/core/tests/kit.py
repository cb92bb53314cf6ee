"""A model of a few lines for engine tests: its nodes are given, its pieces too."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager

from serving.core.contract import Card, Graph, LoadedModel, Options, Task
from serving.core.engine import Engine, EngineSettings

numbers = itertools.count()


class Paper:
    """A port on paper: `make(task)` yields the pieces."""

    def __init__(self, nodes, edges, walks=None, resources=None, pieces=None, in_flight=1):
        named = {node.name: node for node in nodes}
        self.graph = Graph(named, edges, resources or {}, walks or {"all": tuple(named)})
        self.modules = {}
        self._pieces, self._in_flight = pieces, in_flight

    def prepare(self, task):
        return task

    def in_flight(self, job):
        return self._in_flight

    def pieces(self, job):
        yield from self._pieces(job)

    def present(self, port, items):
        return items.values


def loaded(model, rows=8):
    return LoadedModel(Card("paper", "paper", "", {}, "", ""), Options(rows=rows), model)


@asynccontextmanager
async def running(model, rows=8, **settings):
    engine = Engine([loaded(model, rows)], EngineSettings(**settings))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def submit(engine, inputs=None, **options):
    task = Task("generate", inputs or {}, None)
    return await engine.submit("paper", task, request_id=f"p{next(numbers)}", **options)


async def outputs(handle, port):
    """Everything that came out of a port, item by item."""
    return [item for output in [o async for o in handle] if output.port == port for item in output.value]


async def settled(engine, rows=8):
    """Until every slot has come back."""
    deadline = asyncio.get_running_loop().time() + 10
    while engine.stats()["free_slots"]["paper"] < rows:
        assert asyncio.get_running_loop().time() < deadline, engine.stats()
        await asyncio.sleep(0.002)
