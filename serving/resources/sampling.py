"""The operations between logits and a token. Pure; each row's result depends on that row alone.

Removed tokens are -inf. Thresholds keep ties: a token as likely as the last one kept is kept too, so that the
support does not depend on a sort's order.
"""

from __future__ import annotations

import torch
from torch import Tensor

NONE = float("-inf")
PREFIX = 1024  # sorted this far before sorting everything


def penalise(
    logits: Tensor, seen: Tensor, counts: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> Tensor:
    """Repetition (Keskar et al. 2019) over `seen` [N, V] bool; presence and frequency (OpenAI) over `counts`
    [N, V].
    """
    divided = torch.where(logits > 0, logits / repetition[:, None], logits * repetition[:, None])
    logits = torch.where(seen, divided, logits)
    return logits - presence[:, None] * (counts > 0) - frequency[:, None] * counts


def bits(words: Tensor, count: int) -> Tensor:
    """[N, count] bool from words [N, ceil(count / 32)] int32, least significant bit first."""
    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words[:, :, None] >> shifts) & 1).flatten(1)[:, :count].bool()


def masked(logits: Tensor, allowed: Tensor) -> Tensor:
    """Keep what is `allowed` [N, V] bool."""
    return logits.masked_fill(~allowed, NONE)


def top_k(logits: Tensor, k: Tensor) -> Tensor:
    """Keep the k [N] most likely; k = 0 keeps all."""
    most = min(int(k.max()), logits.shape[-1])
    if most < 1:
        return logits
    best = logits.topk(most, dim=-1).values
    least = best.gather(-1, (k.long().clamp(1, most) - 1)[:, None])
    return logits.masked_fill((logits < least) & (k > 0)[:, None], NONE)


def top_p(logits: Tensor, p: Tensor) -> Tensor:
    """Keep the smallest set of most likely tokens whose probabilities reach p [N] (Holtzman et al. 2019)."""
    scale = logits.double().logsumexp(-1, keepdim=True)
    width = min(PREFIX, logits.shape[-1])
    best = logits.topk(width, dim=-1).values
    mass = (best.double() - scale).exp().cumsum(-1)
    if width < logits.shape[-1] and bool((mass[:, -1] < p).any()):
        best = logits.sort(dim=-1, descending=True).values
        mass = (best.double() - scale).exp().cumsum(-1)
    at = (mass < p[:, None]).sum(-1).clamp(max=best.shape[-1] - 1)
    least = best.gather(-1, at[:, None])
    return logits.masked_fill((logits < least) & (p < 1)[:, None], NONE)


def min_p(logits: Tensor, p: Tensor) -> Tensor:
    """Keep tokens at least p [N] times as likely as the most likely one (Nguyen et al. 2024)."""
    least = logits.amax(-1, keepdim=True) + p.log()[:, None]
    return logits.masked_fill(logits < least, NONE)


def draw(logits: Tensor, u: Tensor) -> Tensor:
    """The token at which the cumulative probability, in vocabulary order, passes u [N] in [0, 1).

    Always one of the vocabulary: a row of NaN takes the last.
    """
    mass = logits.double().softmax(-1).cumsum(-1)
    total = mass[:, -1:].contiguous()
    found = torch.searchsorted(mass, u[:, None] * total, right=True)
    return torch.minimum(found, torch.searchsorted(mass, total))[:, 0].clamp(max=logits.shape[-1] - 1)
