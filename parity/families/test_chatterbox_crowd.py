"""Sixteen streams of Chatterbox at once, half of them left at random: the others' bytes, and nothing left behind."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
import pytest

from models import registry
from models.chatterbox.checkpoint import load_port
from models.chatterbox.s3gen_nodes import VocoderNode
from models.chatterbox.tests import saved
from serving.core.contract import LoadedModel, Options, Task
from serving.core.engine import Engine
from serving.resources import PagedKV

ROWS = 16
LATER = 4  # come behind the sixteen, into the slots of those that left
CUTS = {"stream_first_chunk_tokens": 4, "stream_chunk_tokens": 5, "stream_max_chunk_tokens": 8}
SMALL = {"max_text_tokens": 24, "max_new_tokens_limit": 24, "prefill_tokens": 256, "watermark": False, **CUTS}
KEYS = (
    "chatterbox",
    *(pytest.param(key, marks=pytest.mark.nightly) for key in ("chatterbox_turbo", "chatterbox_multilingual")),
)
numbers = itertools.count()


@dataclass(frozen=True)
class Life:
    """A request, and how many chunks of it are read before its client leaves; None: all."""

    text: str
    seed: int
    knobs: dict
    reads: int | None = None
    wait: float = 0.0  # seconds before it leaves


def lives(seed: int) -> list[Life]:
    """Every other one is left; guided and not, warm and not, long and short."""
    words, found = np.random.default_rng(seed), []
    for i in range(ROWS + LATER):
        length, weight, warm = int(words.integers(10, 18)), i // 2 % 2 / 2, float(words.choice([0.0, 0.9]))
        knobs = {"max_new_tokens": length, "cfg_weight": weight, "temperature": warm, "n_cfm_timesteps": 2}
        reads, wait = int(words.integers(0, 3)), float(words.uniform(0, 0.1))
        text = "Hello there."[: int(words.integers(2, 12))]
        found.append(Life(text, i, {**knobs, "ignore_eos": True}, reads if i % 2 else None, wait))
    return found


class Crowd:
    """An engine over a tiny checkpoint."""

    def __init__(self, key, folder):
        options = Options(rows=ROWS, numerics="invariant", weights=str(folder), model=SMALL)
        self.key, self.card, self.port = key, registry.card(key), load_port(key, options)
        self.engine = Engine([LoadedModel(self.card, options, self.port)])

    async def live(self, life: Life) -> bytes:
        """What was heard of it."""
        task = Task("speak", {"text": life.text}, self.card.tasks["speak"](**life.knobs))
        name, heard = f"crowd{next(numbers)}", []
        async with await self.engine.submit(self.key, task, request_id=name, seed=life.seed, live=True) as handle:
            while life.reads is None or len(heard) < life.reads:
                output = await anext(handle, None)
                if output is None:
                    break
                if output.port == "audio":
                    heard.append(output.value.tobytes())
            if life.reads is not None:
                await asyncio.sleep(life.wait)
        return b"".join(heard)

    async def together(self, some: list[Life]) -> list[bytes]:
        """The bytes of those who stay."""
        found = await asyncio.gather(*map(self.live, some))
        return [heard for heard, life in zip(found, some, strict=True) if life.reads is None]

    async def left(self, seconds: float = 20.0) -> list[str]:
        """What is still held when everyone is gone."""
        for _ in range(int(seconds / 0.02)):
            if not (found := self._held()):
                break
            await asyncio.sleep(0.02)
        return found

    def _held(self) -> list[str]:
        stats, run = self.engine.stats(), self.engine.models[self.key]
        kv, sampler = (self.port.graph.resources[name] for name in ("t3_kv", "t3_sampler"))
        facts = {
            "requests": stats["requests"],
            "slots": ROWS - stats["free_slots"][self.key],
            "waiting": stats["waiting"][self.key],
            "owners of pages": len(kv._held),
            "pages": kv.capacity - kv.free,
            "owners of draws": len(sampler._owners),
            **{
                f"rows of {name}": node.live + len(node.groups) + len(node.inflight) for name, node in run.nodes.items()
            },
        }
        return [name for name, count in facts.items() if count]


@asynccontextmanager
async def crowd(key, folder):
    made = Crowd(key, folder)
    await made.engine.start()
    try:
        yield made
    finally:
        await made.engine.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = {}

    def find(key):
        if key not in made:
            made[key] = saved.checkpoint(tmp_path_factory.mktemp(key), key)
        return made[key]

    return find


@pytest.fixture(autouse=True)
def known(parity_record, request):
    parity_record.keys.append(request.node.callspec.params["key"])


@pytest.mark.parametrize("key", KEYS)
async def test_sixteen_streams_some_of_which_are_left(key, folder):
    some = lives(7)
    async with crowd(key, folder(key)) as made:
        alone = [await made.live(life) for life in some if life.reads is None]
        assert await made.together(some) == alone
        assert not await made.left()
    assert len(set(alone)) == len(alone) == (ROWS + LATER) // 2


def keeps_turns(patch):
    patch.setattr(VocoderNode, "begin", lambda self, row: None)


def keeps_pages(patch):
    release = PagedKV.release
    kept = itertools.count()
    patch.setattr(PagedKV, "release", lambda self, owner: release(self, owner) if next(kept) else None)


@pytest.mark.parametrize("key", ["chatterbox"])
async def test_what_a_stream_leaves_behind_is_caught(key, folder, monkeypatch):
    """State of a slot that the next one hears, and pages that nobody gives back."""
    some = [life for life in lives(7) if life.reads is None][:4]
    async with crowd(key, folder(key)) as made:
        alone = [await made.live(life) for life in some]
        assert not await made.left()
        with monkeypatch.context() as patch:
            keeps_turns(patch)
            assert await made.together(some) != alone
        with monkeypatch.context() as patch:
            keeps_pages(patch)
            await made.together(some)
            assert await made.left(1.0) == ["owners of pages", "pages"]
