"""Logits on a CPU, quicker: text by products of 8-bit integers, the likeliest of it again in float32.

One token at a time, a decoder reads its whole vocabulary's weights at each step; as bytes they are a quarter. Integer
sums are exact, and each row is quantised by itself, so a row's text does not depend on the rows beside it. Timestamps,
which are few and whose sum decides, are float32.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ENGINE = "fbgemm"
AGAIN = 32  # tokens a row whose logits are computed in float32
PAD = 8  # columns added, of which two hold the ends of the range that is quantised


class QuickHead:
    """Callable, hidden [T, D] to logits [T, V], V from `stamps` on in float32. The weight may not change any more."""

    def __init__(self, weight: Tensor, stamps: int) -> None:
        self.weight, self.stamps = weight.detach(), stamps
        text = self.weight[:stamps]
        padded, scales = F.pad(text, (0, PAD)), (text.abs().amax(1) / 127).double()
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = ENGINE  # what packs the weights; what runs them is what packed them
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of quantised tensors, which nothing replaces here yet
                quantised = torch.quantize_per_channel(padded, scales, torch.zeros(len(scales)).long(), 0, torch.qint8)
            self.packed = torch.ops.quantized.linear_prepack(quantised, None)
        finally:
            torch.backends.quantized.engine = before

    def __call__(self, x: Tensor) -> Tensor:
        largest = x.abs().amax(-1, keepdim=True)
        unit = F.pad(x / largest, (0, PAD))
        unit[:, -2], unit[:, -1] = -1.0, 1.0
        out = x.new_empty(len(x), len(self.weight))
        text, times = out[:, : self.stamps], out[:, self.stamps :]
        torch.mul(torch.ops.quantized.linear_dynamic(unit, self.packed, True), largest, out=text)
        best = text.topk(AGAIN, sorted=False).indices
        text.scatter_(1, best, (self.weight[best] * x[:, None]).sum(-1))  # a product of one row takes another kernel
        times.copy_(F.linear(x, self.weight[self.stamps :]))
        return out


def quick_head(head: nn.Linear, stamps: int) -> Callable[[Tensor], Tensor]:
    """The quick head where torch was built for it; elsewhere the plain one."""
    return QuickHead(head.weight, stamps) if ENGINE in torch.backends.quantized.supported_engines else head
