"""The multilingual model's alignment analyser: where in the text the speech is, and a say on its end.

A few heads attend to the text token that is being spoken. From their mean the reference keeps the end of speech away
until the text is spoken, and forces it when the last sounds drag on, when the speech goes back to earlier text, or
when a token comes twice in a row. Its history of attention only enters through sums and maxima; those are kept here
by slot in device tables, so that a step needs nothing from the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from models.chatterbox.config import STOP_SPEECH, T3Config
from serving.core.contract import Batch

FORCED, SUPPRESSED = 2.0**15, -(2.0**15)
BACK, AHEAD = -4, 7  # how far the position may move in a step, both excluded
LAST = 3  # text tokens that count as the end: punctuation and the stop token
EARLIER = 5  # text tokens that are not yet "earlier text"
FIRST = 4  # text tokens that the start of speech must attend to
LIMIT = 5.0  # attention, summed over steps, that is too much: 5 steps are 200 ms
SHORTEST = 5  # texts up to this length are never kept from ending


class Alignment:
    """State of every slot. `columns`: most tokens of a text; `width`: of a sequence. `reset` a slot first."""

    def __init__(self, slots: int, c: T3Config, device: torch.device | str, *, columns: int, width: int) -> None:
        def table(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros((slots + 1, *shape), dtype=dtype, device=device)

        layers = sorted({layer for layer, _ in c.aligned_heads})
        self.heads = {layer: [head for at, head in c.aligned_heads if at == layer] for layer in layers}
        self.columns, self.width = columns, width
        self.state = {
            "length": table(torch.int64),  # text tokens
            "step": table(torch.int64),
            "position": table(torch.int64),
            "before": table(torch.int64),  # the token before the last one
            "started": table(torch.bool),
            "complete": table(torch.bool),
            "opening": table(torch.float32),  # what the first start token pays the first text token
            "first": table(torch.float32),  # most attention to the first text tokens so far
            "ending": table(torch.float32),  # most attention to the last two in the step before
            "tail": table(torch.float32, LAST),  # sums since completion
            "back": table(torch.float32),
        }

    def reset(self, slot: int, length: int) -> None:
        """Begin a text of so many tokens."""
        for table in self.state.values():
            table[slot] = 0
        self.state["length"][slot] = length

    def advance(
        self, b: Batch, logits: Tensor, looks: Sequence[Tensor], text_from: Tensor, speech_from: Tensor, last: Tensor
    ) -> Tensor:
        """Logits [size, V] as the reference leaves them, from the heads' scores [heads, T, L], layer by layer.

        Tables [slots + 1]: where text and speech begin, and each row's token before this step.
        """
        kv, slots = b.use["t3_kv"], b.slots
        before = (kv.last - 1).clamp(min=0)
        start, begins = text_from[slots], speech_from[slots]
        attention = self.weights(looks, kv.last, start)
        # The prompt's two start tokens may come in one step or in two.
        same_row = kv.token_rows[before] == kv.token_rows[kv.last]
        paired = same_row & (kv.positions[before] == begins)
        opening = torch.where(kv.positions[kv.last] == begins, attention[:, 0], self.state["opening"][slots])
        opening = torch.where(paired, self.weights(looks, before, start)[:, 0], opening)
        self.state["opening"][slots] = opening
        return self.step(logits, attention, slots, last[slots], b.buffers["speaks"])

    def weights(self, looks: Sequence[Tensor], tokens: Tensor, start: Tensor) -> Tensor:
        """The heads' mean attention [N, columns] of packed tokens [N] over the text that begins at `start` [N]."""
        scores = torch.cat([look[:, tokens] for look in looks])
        scores = F.pad(scores, (0, self.width - scores.shape[-1]), value=float("-inf"))  # one width, one rounding
        mean = scores.softmax(-1).nan_to_num(0.0).mean(0)  # a padding row sees nothing
        return mean.gather(1, start[:, None] + torch.arange(self.columns, device=start.device))

    def step(self, logits: Tensor, attention: Tensor, slots: Tensor, last: Tensor, speaks: Tensor) -> Tensor:
        """One step of the analyser from attention [N, W] over the text; the state moves on where `speaks` [N]."""
        held = {name: table[slots] for name, table in self.state.items()}
        found = look(held, attention)
        forced = found["complete"] & ((found["tail"].amax(-1) >= LIMIT) | (found["back"] > LIMIT))
        forced |= (held["step"] >= 2) & (last == held["before"])
        early = (found["spot"] < held["length"] - LAST) & (held["length"] > SHORTEST)
        logits = logits.clone()
        logits[:, STOP_SPEECH] = torch.where(early, SUPPRESSED, logits[:, STOP_SPEECH])
        only_end = torch.full_like(logits, SUPPRESSED)
        only_end[:, STOP_SPEECH] = FORCED
        self._keep(held, found | {"before": last, "step": held["step"] + 1}, slots, speaks)
        return torch.where(forced[:, None], only_end, logits)

    def _keep(self, held: Mapping[str, Tensor], found: Mapping[str, Tensor], slots: Tensor, speaks: Tensor) -> None:
        for name, table in self.state.items():
            if name in found:
                moved = speaks.view(-1, *[1] * (table.dim() - 1))
                table[slots] = torch.where(moved, found[name], held[name])


def look(held: Mapping[str, Tensor], attention: Tensor) -> dict[str, Tensor]:
    """The state [N] after a step that attended so [N, W] to the text, and `spot`, where it attended most."""
    step, length = held["step"][:, None], held["length"][:, None]
    columns = torch.arange(attention.shape[1], device=attention.device)
    seen = torch.where((columns <= step) & (columns < length), attention, 0.0)
    spot = seen.argmax(-1)
    moved = spot - held["position"]
    position = torch.where((moved > BACK) & (moved < AHEAD), spot, held["position"])
    ending = seen.gather(1, _ends(length, 2)).amax(-1)
    opening = torch.where(held["step"] == 0, held["opening"], 0.0)
    first = torch.maximum(torch.maximum(held["first"], opening), seen[:, :FIRST].amax(-1))
    astray = (torch.maximum(ending, held["ending"]) > 0.1) | (first < 0.5)
    was = held["complete"]
    earlier = torch.where(columns < length - EARLIER, seen, 0.0).amax(-1)
    return {
        "spot": spot,
        "position": position,
        "ending": ending,
        "first": first,
        "started": held["started"] | ~astray,
        "complete": was | (position >= held["length"] - LAST),
        "tail": held["tail"] + torch.where(was[:, None], seen.gather(1, _ends(length, LAST)), 0.0),
        "back": held["back"] + torch.where(was, earlier, 0.0),
    }


def _ends(length: Tensor, count: int) -> Tensor:
    """Columns [N, count] of the last text tokens of lengths [N, 1]."""
    return (length - count + torch.arange(count, device=length.device)).clamp(min=0)
