"""How speech tokens become sound while they come: the chunks of the two edges, and the join of what they give."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.chatterbox.s3gen_config import FRAMES_PER_TOKEN, LOOKAHEAD, SAMPLE_RATE, TOKEN_RATE
from serving.core.contract import ChunkPolicy, Edge
from serving.core.streams import Each, Ramp, Whole

TAIL = 8  # frames at a chunk's end that the next one makes again, for the cross-fade
LEAD = 8  # frames before those, so that pitch and sound have settled by then
EVERYTHING = 1 << 30


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """Sizes in tokens. `chunk` 0: whole utterances, as the package makes them."""

    first: int = 35
    chunk: int = 50
    growth: int = 2
    most: int = 200
    context: int = 25  # settled tokens that a chunk's solve sees; 0: all of them

    @property
    def whole(self) -> bool:
        return self.chunk == 0

    @property
    def nodes(self) -> tuple[str, str]:
        """Names of the nodes from tokens to mel and from mel to samples: the same networks are run in both ways."""
        return ("s3gen_whole", "vocoder_whole") if self.whole else ("s3gen", "vocoder")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The chunks before they reach their largest size."""
        sizes, size = [self.first], self.chunk
        while size < self.most:
            sizes.append(size)
            size = size * self.growth if self.growth > 1 else self.most
        return tuple(sizes)

    def seen(self, limit: int) -> tuple[int, ...]:
        """How many tokens the solves of utterances up to `limit` tokens see, prompt aside: each number once, ascending.

        A last chunk sees less than the one that it stands in place of, so that only the longest's may add a number.
        """
        policy, found = self.policy(1, self.context or EVERYTHING, LOOKAHEAD), set[int]()
        chunk = policy.next(0, limit, True)
        while chunk is not None and not chunk.final:
            found.add(chunk.seen - chunk.start)
            chunk = policy.next(chunk.stop, limit, True)
        last = 0 if chunk is None else chunk.seen - chunk.start
        return tuple(sorted(found | {max({last, *found})}))

    def policy(self, scale: int, context: int, lookahead: int) -> ChunkPolicy:
        """Chunks of so many items a token."""
        if self.whole:
            return Whole()
        return Ramp([scale * size for size in self.sizes], scale * self.most, context, lookahead)


WHOLE = StreamPlan(chunk=0)


def edges(plan: StreamPlan) -> tuple[Edge, ...]:
    """From the speech tokens to the client. Both ramps have the same steps, so that a solve is a vocoder's chunk."""
    (flow, vocoder), frames = plan.nodes, plan.policy(FRAMES_PER_TOKEN, LEAD + TAIL, 0)
    return (
        Edge("t3.tokens", f"{flow}.tokens", plan.policy(1, plan.context or EVERYTHING, LOOKAHEAD), rate=TOKEN_RATE),
        Edge(f"{flow}.mel", f"{vocoder}.mel", frames, rate=FRAMES_PER_TOKEN * TOKEN_RATE, device=True),
        Edge(f"{vocoder}.pcm", "client.audio", Each(), rate=SAMPLE_RATE),
    )


def rise(samples: int, device: torch.device) -> Tensor:
    """A raised cosine from 0 to 1: with its reverse it adds up to 1."""
    at = torch.arange(samples, device=device) + 0.5
    return 0.5 - 0.5 * torch.cos(torch.pi / samples * at)


def joined(held: Tensor, fresh: Tensor) -> Tensor:
    """The end of one chunk [..., T] into the start of the next, which are the same stretch of sound."""
    up = rise(held.shape[-1], held.device)
    return held * (1 - up) + fresh * up
