"""The generator for CPUs: one row at its own length, channels last, convolutions by Fourier transforms.

Same weights and same formulas as `vocoder.Generator`, in another order of arithmetic. Styled norm and snake become
three passes: u = a x + b with the norm, the style and the snake's frequency folded into a and b, then u + sin(u)^2,
which is the snake times its frequency; that factor is taken out of the weights of the convolution behind it. The
bias of a convolution before a norm changes nothing and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.components.layers.crew import Crew, Workspace
from models.components.layers.fourier import FourierConv1d
from models.kokoro.layers import AdaIN1d, Span
from models.kokoro.modules import Kokoro
from models.kokoro.vocoder import Generator, SnakeBlock

LEAD, TAIL = 32, 256  # zero rows before and after what a convolution reads
SLICE = 1 << 16  # numbers that an elementwise pass works on at a time
TILES = {3: 12, 7: 24, 11: 32}  # taps -> tile: the fastest of those tried on two cores
WIDE_TILES = {3: 12, 7: 24, 11: 24}  # where weights, which grow with the tile, are what is read most
WIDE = 256  # channels
GROUP = 256  # tiles a product, at most: fewer leave its kernel short of rows


def bias(conv: nn.Conv1d | nn.ConvTranspose1d) -> Tensor:
    """The bias, which every convolution here has."""
    assert conv.bias is not None
    return conv.bias.detach()


def convolution(conv: nn.Conv1d, alpha: Tensor, *, biased: bool) -> FourierConv1d:
    """A convolution behind a snake of frequency `alpha` [1, C, 1]."""
    wide = conv.in_channels >= WIDE
    taps = conv.kernel_size[0]
    tile = (WIDE_TILES if wide else TILES)[taps]
    kept = bias(conv) if biased else None
    return FourierConv1d(conv.weight.detach() / alpha.detach(), kept, conv.dilation[0], tile, GROUP)


class Norm:
    """A styled norm and the snake behind it: where its gains lie in the table of all, and the snake's frequency."""

    def __init__(self, norm: AdaIN1d, alpha: Tensor) -> None:
        self.alpha = alpha.detach().flatten()
        self.eps = norm.EPS
        self.width = norm.fc.out_features
        self.at = 0

    def __call__(self, x: Tensor, gains: Tensor, out: Tensor, crew: Crew, work: Workspace) -> None:
        """x [T, C] -> out [T, C]: alpha times snake(norm(x))."""
        scale, shift = gains[self.at : self.at + self.width].chunk(2)
        mean, variance = moments(x, crew)
        a = (1 + scale) * self.alpha * torch.rsqrt(variance + self.eps)
        b = torch.addcmul(shift * self.alpha, mean, a, value=-1)

        def compute(part: slice) -> None:
            into = out[part]
            torch.addcmul(b, x[part], a, out=into)
            sine = work.take("slice", *into.shape)
            torch.sin(into, out=sine)
            into.addcmul_(sine, sine)

        crew.each(compute, slices(x))


def slices(x: Tensor) -> list[slice]:
    """Rows of x [T, C] in parts of `SLICE` numbers."""
    rows = max(1, SLICE // x.shape[1])
    return [slice(first, min(first + rows, len(x))) for first in range(0, len(x), rows)]


def moments(x: Tensor, crew: Crew) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel of x [T, C]: those of slices, joined, as one long float32 sum loses digits."""
    parts = slices(x)
    means, variances = x.new_empty(2, len(parts), x.shape[1])

    def compute(i: int) -> None:
        image = x[parts[i]].t()[None, :, :, None]  # batch norm has a fast path for channels last
        means[i], variances[i] = torch.batch_norm_update_stats(image, None, None, 0.0)

    crew.each(compute, range(len(parts)))
    weights = torch.tensor([[part.stop - part.start] for part in parts]) / len(x)
    mean = (means * weights).sum(0)
    return mean, ((variances + (means - mean).square()) * weights).sum(0)


class Pair(NamedTuple):
    norm1: Norm
    conv1: FourierConv1d
    norm2: Norm
    conv2: FourierConv1d


def pairs(block: nn.Module) -> list[Pair]:
    """A block's three pairs of convolutions with what stands before each."""
    assert isinstance(block, SnakeBlock)
    layers = (block.adain1, block.alpha1, block.convs1, block.adain2, block.alpha2, block.convs2)
    return [
        Pair(
            Norm(n1, a1),
            convolution(c1, a1, biased=False),
            Norm(n2, a2),
            convolution(c2, a2, biased=True),
        )
        for n1, a1, c1, n2, a2, c2 in zip(*layers, strict=True)
    ]


class Up:
    """A transposed convolution with taps = 2 x stride as two matrix products."""

    def __init__(self, conv: nn.Module) -> None:
        assert isinstance(conv, nn.ConvTranspose1d)
        self.stride, self.pad, self.outputs = conv.stride[0], int(conv.padding[0]), conv.out_channels
        weight = conv.weight.detach().permute(0, 2, 1)  # [C, K, O]
        self.now = weight[:, : self.stride].flatten(1).contiguous()
        self.before = weight[:, self.stride :].flatten(1).contiguous()
        self.bias = bias(conv)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, C] -> [T * stride, O]."""
        found = x.new_zeros(len(x) + 1, self.stride * self.outputs)
        torch.mm(x, self.now, out=found[:-1])
        found[1:].addmm_(x, self.before)
        return found.view(-1, self.outputs)[self.pad : self.pad + len(x) * self.stride] + self.bias


class Down:
    """A strided convolution of few channels as one matrix product over its windows."""

    def __init__(self, conv: nn.Module) -> None:
        assert isinstance(conv, nn.Conv1d)
        self.taps, self.stride, self.pad = conv.kernel_size[0], conv.stride[0], int(conv.padding[0])
        self.weight = conv.weight.detach().permute(2, 1, 0).flatten(0, 1).contiguous()  # [K C, O]
        self.bias = bias(conv)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, C] -> [T', O]."""
        padded = F.pad(x, (0, 0, self.pad, self.pad))
        windows = padded.unfold(0, self.taps, self.stride).transpose(1, 2).flatten(1)  # [T', K C]
        return torch.addmm(self.bias, windows, self.weight)


class SwiftGenerator:
    """`Generator.forward` for one row. For one thread at a time."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.crew, self.work = Crew(), Workspace()
        self.ups = [Up(up) for up in generator.ups]
        self.downs = [Down(conv) for conv in generator.noise_convs]
        self.noise_blocks = [pairs(block) for block in generator.noise_res]
        self.blocks = [pairs(block) for block in generator.resblocks]
        layers = [f for block in (*generator.noise_res, *generator.resblocks) for f in _norms(block)]
        self.style_weight = torch.cat([layer.fc.weight.detach() for layer in layers])
        self.style_bias = torch.cat([layer.fc.bias.detach() for layer in layers])
        at = 0
        for norm in self._norms():
            norm.at, at = at, at + norm.width
        self.post = generator.conv_post.weight.detach().permute(1, 2, 0).flatten(1).contiguous()  # [C, K O]

    def _norms(self) -> Iterator[Norm]:
        for block in (*self.noise_blocks, *self.blocks):
            yield from (pair.norm1 for pair in block)
            yield from (pair.norm2 for pair in block)

    def __call__(self, x: Tensor, style: Tensor, source: Tensor) -> Tensor:
        """x [V, C], style [S], source [steps + 1, bins] -> audio [samples]."""
        each = self.generator.blocks_a_stage
        gains = torch.addmv(self.style_bias, self.style_weight, style)
        for i, up in enumerate(self.ups):
            x = up(F.leaky_relu(x, 0.1))
            if i == len(self.ups) - 1:
                x = torch.cat([x[1:2], x])
            x = x + self._through(self.noise_blocks[i], self.downs[i](source), gains)
            first, *rest = self.blocks[i * each : (i + 1) * each]
            total = self._through(first, x, gains).clone()
            for block in rest:
                total += self._through(block, x, gains)
            x = total.div_(each)
        return self._wave(F.leaky_relu_(x))

    def _through(self, block: list[Pair], x: Tensor, gains: Tensor) -> Tensor:
        """A block over x [T, C]; the result lies in a buffer that the next block takes."""
        count, channels = x.shape
        carried = self.work.take("carried", count + TAIL, channels)
        between = self.work.take("between", count + TAIL, channels)
        padded = self.work.take("padded", LEAD + count + TAIL, channels)
        padded[:LEAD].zero_()
        padded[LEAD + count :].zero_()
        inner = padded[LEAD : LEAD + count]
        carried[:count] = x
        for norm1, conv1, norm2, conv2 in block:
            norm1(carried[:count], gains, inner, self.crew, self.work)
            conv1(padded[LEAD - conv1.pad :], count, between, self.crew, self.work)
            norm2(between[:count], gains, inner, self.crew, self.work)
            conv2.add(padded[LEAD - conv2.pad :], count, carried, self.crew, self.work)
        return carried[:count]

    def _wave(self, x: Tensor) -> Tensor:
        """The last convolution as one product and shifted sums; then the inverse transform."""
        conv = self.generator.conv_post
        taps, outputs, count = conv.kernel_size[0], conv.out_channels, len(x)
        each = F.pad((x @ self.post).view(count, taps, outputs), (0, 0, 0, 0, taps // 2, taps // 2))
        found = torch.stack([each[i : i + count, i] for i in range(taps)]).sum(0) + bias(conv)
        magnitude, phase = found.t()[None].chunk(2, 1)
        span = Span.of(torch.tensor([count]), count)
        return self.generator.spectrum.inverse_transform(magnitude.exp(), phase.sin(), span)[0]


def _norms(block: SnakeBlock) -> list[AdaIN1d]:
    return [*block.adain1, *block.adain2]


class SwiftFrameHalf:
    """`Kokoro.frame_half`, its generator row by row at their true lengths. For one thread at a time."""

    def __init__(self, net: Kokoro) -> None:
        self.net = net
        self.generator = SwiftGenerator(net.decoder.generator)

    def __call__(self, prosody: Tensor, text: Tensor, lengths: Tensor, style: Tensor, noise: Tensor) -> Tensor:
        """As `Kokoro.frame_half`."""
        x, f0 = self.net.trunk(prosody, text, lengths, style)
        audio = x.new_zeros(len(x), noise.shape[2])
        timbre = style[:, : self.net.config.style_dim]
        each = self.net.config.samples_per_frame
        for i, frames in enumerate(lengths.tolist()):
            if frames:  # a row of padding has none
                values = 2 * frames
                excited = noise[i : i + 1, :, : frames * each]
                count = torch.tensor([values])
                source = self.net.decoder.generator.source(f0[i : i + 1, :values], excited, count)
                audio[i, : frames * each] = self.generator(x[i, :, :values].t().contiguous(), timbre[i], source[0].t())
        return audio
