"""1-D convolution by short Fourier transforms over tiles of time, for CPUs: a third of the multiplications or fewer.

A tile of `tile` inputs gives `tile - K + 1` outputs as an inverse transform of (transformed inputs x transformed
weights). Each complex product of two spectra is three real ones (Gauss), so all three steps are real matrix products
of fixed shapes: nothing is compiled or cached by length, and float32 loses less than a direct sum of K x C products.
Activations are channels last, so that windows are strided views and channels are the columns of every product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor


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


class Workspace:
    """Float32 buffers by name that only grow: a process that reuses them pays no page faults and fragments no heap.

    What is asked for beyond `most` elements is made anew and not kept. For one thread at a time.
    """

    def __init__(self, most: int = 1 << 24) -> None:
        self.most = most
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """A buffer of a shape; it holds what its last user left, zeros where nobody wrote."""
        size = math.prod(shape)
        if size > self.most:
            return torch.zeros(shape)
        held = self._held.get(name)
        if held is None or held.numel() < size:
            held = self._held[name] = torch.zeros(size)
        return held[:size].view(shape)


class FourierConv1d:
    """A stride-1 convolution whose output is as long as its input. Weight [O, C, K], K odd.

    `group` tiles are transformed at a time: few enough to stay in a cache.
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

    def __call__(self, x: Tensor, count: int, out: Tensor, work: Workspace) -> None:
        """x [>= read(count), C], row `pad` being the first position -> out [>= written(count), O]."""
        for phase in range(self.dilation):
            found = out if self.dilation == 1 else work.take("phase", self.tiles(count) * self.step, self.outputs)
            for first, size, points in self._points(x[phase:], count, work):
                rows = found[first * self.step : (first + size) * self.step].view(size, self.step, self.outputs)
                torch.bmm(self.inverse_matrix.expand(size, -1, -1), points, out=rows)
            if found is not out:
                target = out[phase : count : self.dilation]
                target.copy_(found[: len(target)])

    def add(self, x: Tensor, count: int, to: Tensor, work: Workspace) -> None:
        """As a call, but the result is added to `to`. Dilation 1 only."""
        assert self.dilation == 1
        for first, size, points in self._points(x, count, work):
            rows = to[first * self.step : (first + size) * self.step].view(size, self.step, self.outputs)
            rows.baddbmm_(self.inverse_matrix.expand(size, -1, -1), points)

    def _points(self, x: Tensor, count: int, work: Workspace) -> Iterator[tuple[int, int, Tensor]]:
        """Groups of tiles: the first tile, how many, and the spectrum of their result [size, M, O]."""
        tiles, points = self.tiles(count), len(self.weight)
        row = self.dilation * self.inputs
        for first in range(0, tiles, self.group):
            size = min(self.group, tiles - first)
            window = x[first * self.step * self.dilation :].as_strided(
                (size, self.tile, self.inputs), (self.step * row, row, 1)
            )
            seen = work.take("seen", size, points, self.inputs)
            torch.bmm(self.forward_matrix.expand(size, -1, -1), window, out=seen)
            made = work.take("made", points, size, self.outputs)
            torch.bmm(seen.transpose(0, 1), self.weight, out=made)
            if self.bias is not None:
                made[0] += self.bias
            yield first, size, made.transpose(0, 1)
