"""Logits on a CPU, quicker: all of the vocabulary by products of 8-bit integers, the likeliest again in float32.

One token at a time, a decoder reads its whole vocabulary's weights at each step; as bytes they are a quarter. Integer
sums are exact, and each row is quantised by itself, so a row's logits do not depend on the rows beside it.
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
    """Callable, hidden [T, D] to logits [T, V]. The weight may not change once this is made."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.detach()
        padded = F.pad(self.weight, (0, PAD))
        scales = (self.weight.abs().amax(1) / 127).double()
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
        logits = torch.ops.quantized.linear_dynamic(unit, self.packed, True).mul_(largest)
        best = logits.topk(AGAIN, sorted=False).indices
        exact = (self.weight[best] * x[:, None]).sum(-1)  # a product of one row takes another kernel
        return logits.scatter_(1, best, exact)


def quick_head(head: nn.Linear) -> Callable[[Tensor], Tensor]:
    """The quick head where torch was built for it; elsewhere the plain one."""
    return QuickHead(head.weight) if ENGINE in torch.backends.quantized.supported_engines else head
