"""1-D convolution by short Fourier transforms over tiles of time, for CPUs: a third of the multiplications or fewer.

A tile of `tile` inputs gives `tile - K + 1` outputs as an inverse transform of (transformed inputs x transformed
weights). Each complex product of two spectra is three real ones (Gauss), so all three steps are real matrix products
of fixed shapes: nothing is compiled or cached by length, and float32 loses less than a direct sum of K x C products.
Activations are channels last, so that windows are strided views and channels are the columns of every product.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from models.components.layers.crew import Crew, Workspace


def transforms(tile: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Matrices of data [M, tile], kernel [M, tile] and result [tile, M]: result @ (data x * kernel w) is x * w, cyclic.

    Rows are the products of each frequency: one where the spectrum of real numbers is real, else Gauss's three.
    """
    n, one = np.arange(tile), np.ones(tile)
    data: list[np.ndarray] = [one]
    kernel: list[np.ndarray] = [one]
    result: list[np.ndarray] = [one / tile]
    for k in range(1, (tile + 1) // 2):
        c, s = np.cos(2 * np.pi * k * n / tile), np.sin(2 * np.pi * k * n / tile)
        data += [c - s, c, -s]
        kernel += [c, -s - c, c - s]
        result += [2 / tile * (c - s), -2 / tile * s, -2 / tile * c]
    if tile % 2 == 0:
        nyquist = (-1.0) ** n
        data, kernel, result = [*data, nyquist], [*kernel, nyquist], [*result, nyquist / tile]
    return np.array(data), np.array(kernel), np.array(result).T


class FourierConv1d:
    """A stride-1 convolution whose output is as long as its input. Weight [O, C, K], K odd.

    `group` tiles are computed at a time: enough rows for a product, few enough to stay in a cache.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dilation: int, tile: int, group: int) -> None:
        self.outputs, self.inputs, taps = weight.shape
        self.dilation, self.tile, self.step, self.group = dilation, tile, tile - taps + 1, group
        self.pad = dilation * (taps - 1) // 2
        data, kernel, result = transforms(tile)
        turned = weight.double().flip(2)  # a correlation is a convolution with the kernel turned around
        points = torch.einsum("mk,ock->mco", torch.from_numpy(kernel[:, :taps]), turned)
        self.weight = points.float().contiguous()  # [M, C, O]
        self.forward_matrix = torch.from_numpy(data).float()
        self.inverse_matrix = torch.from_numpy(result[taps - 1 :]).float().contiguous()
        self.bias = None if bias is None else bias * tile  # all of a constant is in the first point

    def tiles(self, count: int) -> int:
        """Tiles of each phase of the dilation, for `count` outputs."""
        return -(-count // (self.step * self.dilation))

    def written(self, count: int) -> int:
        """Rows of the output that are written: `count`, and what the last tiles give beyond."""
        return self.tiles(count) * self.step * self.dilation

    def read(self, count: int) -> int:
        """Rows of the input that are read, the `pad` before the first included."""
        return self.written(count) + self.dilation * (self.tile - self.step)

    def groups(self, count: int) -> list[range]:
        """Tiles of all phases, one phase after another, in equal groups. Of an even number, for an even share."""
        total = self.dilation * self.tiles(count)
        number = min(total, 2 * -(-total // (2 * self.group)))
        return [range(total * i // number, total * (i + 1) // number) for i in range(number)]

    def __call__(self, x: Tensor, count: int, out: Tensor, crew: Crew, work: Workspace) -> None:
        """x [>= read(count), C], row `pad` being the first position -> out [>= written(count), O]."""

        def compute(group: range) -> None:
            for start, points in self._points(x, count, group, work):
                made = work.take("rows", len(points), self.step, self.outputs)
                torch.bmm(self.inverse_matrix.expand(len(points), -1, -1), points, out=made)
                made = made.flatten(0, 1)
                out[start :: self.dilation][: len(made)] = made

        crew.each(compute, self.groups(count))

    def add(self, x: Tensor, count: int, to: Tensor, crew: Crew, work: Workspace) -> None:
        """As a call, but the result is added to `to`. Dilation 1 only."""
        assert self.dilation == 1

        def compute(group: range) -> None:
            for start, points in self._points(x, count, group, work):
                rows = to[start : start + len(points) * self.step].view(-1, self.step, self.outputs)
                rows.baddbmm_(self.inverse_matrix.expand(len(points), -1, -1), points)

        crew.each(compute, self.groups(count))

    def _points(self, x: Tensor, count: int, group: range, work: Workspace) -> Iterator[tuple[int, Tensor]]:
        """The result's spectra of a group's tiles, phase by phase: the first row of the output, spectra [n, M, O]."""
        points, row = len(self.weight), self.dilation * self.inputs
        seen = work.take("seen", len(group), points, self.inputs)
        runs = list(self._runs(count, group))
        for start, part in runs:
            size = part.stop - part.start
            window = x[start:].as_strided((size, self.tile, self.inputs), (self.step * row, row, 1))
            torch.bmm(self.forward_matrix.expand(size, -1, -1), window, out=seen[part])
        made = work.take("made", points, len(group), self.outputs)
        torch.bmm(seen.transpose(0, 1), self.weight, out=made)
        if self.bias is not None:
            made[0] += self.bias
        for start, part in runs:
            yield start, made[:, part].transpose(0, 1)

    def _runs(self, count: int, group: range) -> Iterator[tuple[int, slice]]:
        """Where a group's tiles of each phase start in the signal, and which of the group they are."""
        each = self.tiles(count)
        first = group.start
        while first < group.stop:
            phase, tile = divmod(first, each)
            last = min(group.stop, (phase + 1) * each)
            yield phase + tile * self.step * self.dilation, slice(first - group.start, last - group.start)
            first = last
