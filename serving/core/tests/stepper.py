"""An engine whose steps, clients and clock move when a test says so: the engine's own code, without its threads."""

from __future__ import annotations

from collections import deque
from queue import Empty
from types import SimpleNamespace

from serving.core.contract import Card, LoadedModel, Options, Task
from serving.core.engine import Engine, EngineSettings
from serving.core.handoff import End
from serving.core.request import Request, advance
from serving.core.scheduler import Rules


class Loop:
    """An event loop that does what it is asked at once."""

    def is_closed(self):
        return False

    def call_soon_threadsafe(self, function, *args):
        function(*args)


class Client:
    """What one client was sent, and what it has read of it."""

    loop = Loop()

    def __init__(self):
        self.unread = deque()
        self.got = []
        self.end = None

    def push(self, events):
        assert self.end is None, "the end is the last thing that a client hears"
        for event in events:
            if isinstance(event, End):
                self.end = event
            else:
                self.unread.append(event)

    def read(self, most=None):
        """Take up to so many events; returns the number of their items."""
        count = 0
        while self.unread and (most is None or most > 0):
            _, values, items = self.unread.popleft()
            self.got += [int(value) for value in values]
            count += items
            most = None if most is None else most - 1
        return count

    @property
    def sent(self):
        return self.got + [int(value) for _, values, _ in self.unread for value in values]


class Stepper:
    """One model in an engine; `turn` is a pass of its loop, `launch` runs the oldest step that waits on the lane."""

    def __init__(self, model, rows, admission=None, depth=2, **settings):
        loaded = LoadedModel(
            Card("paper", "paper", "", {}, "", ""), Options(rows=rows, admission=admission or {}), model
        )
        self.now = 0.0
        self.engine = Engine([loaded], EngineSettings(rules=Rules(depth=depth), **settings), clock=lambda: self.now)
        self.jobs = deque()
        self.engine._lanes = [SimpleNamespace(depth=0, steps=[], submit=lambda job, threads: self.jobs.append(job))]
        self.engine._pool = SimpleNamespace(submit=lambda job: job())
        self.engine.state = "ready"
        self.requests, self.model = self.engine._requests, self.engine.models["paper"]

    def enter(self, request_id, inputs, seed=0, priority=0):
        """Submit; returns the client."""
        client, task, port = Client(), Task("generate", inputs, None, seed), self.model.loaded.model
        request = Request(request_id, self.model, task, seed, client, self.now, priority=priority)
        request.in_flight, request.steps = port.in_flight(task), port.pieces(task)
        self.requests.enter(request, advance(request.steps, None))
        self.turn()
        return client

    def turn(self):
        """Take every message, launch what can be launched, hand over."""
        self.now += 0.001
        engine = self.engine
        while True:
            try:
                engine._inbox.get_nowait()()
            except Empty:
                break
        self.requests.expire(engine._clock())
        engine._wake()
        engine._pump()
        engine._outbox.flush()

    def launch(self):
        """Run a step; False when none waits."""
        if not self.jobs:
            return False
        self.jobs.popleft()()
        self.turn()
        return True

    def read(self, request_id, client, most=None):
        self.engine.consumed(request_id, client.read(most))
        self.turn()
