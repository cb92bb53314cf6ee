"""CAM++, the speaker encoder: the filter banks of a clip to an embedding (https://arxiv.org/abs/2303.00332)."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.chatterbox.s3gen_config import MELS, SpeakerConfig
from models.components.audio.kaldi import fbank

PLANES = 32  # of the two-dimensional front
SEGMENT = 100  # frames whose mean is a layer's context


def normed(channels: int, *, affine: bool = True, relu: bool = True) -> nn.Sequential:
    """Batch norm, and ReLU behind it."""
    layers: list[tuple[str, nn.Module]] = [("batchnorm", nn.BatchNorm1d(channels, affine=affine))]
    return nn.Sequential(OrderedDict([*layers, ("relu", nn.ReLU())] if relu else layers))


class ResBlock(nn.Module):
    """Two 3 x 3 convolutions beside a residual; `stride` is along the frequencies."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(PLANES, PLANES, 3, (stride, 1), 1, bias=False)
        self.bn1 = nn.BatchNorm2d(PLANES)
        self.conv2 = nn.Conv2d(PLANES, PLANES, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(PLANES)
        down = [nn.Conv2d(PLANES, PLANES, 1, (stride, 1), bias=False), nn.BatchNorm2d(PLANES)] if stride > 1 else []
        self.shortcut = nn.Sequential(*down)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(h + self.shortcut(x))


class Front(nn.Module):
    """Filter banks [B, 80, T] as a picture, to [B, 320, T]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, PLANES, 3, padding=1, bias=False), nn.BatchNorm2d(PLANES)
        self.layer1 = nn.Sequential(ResBlock(2), ResBlock(1))
        self.layer2 = nn.Sequential(ResBlock(2), ResBlock(1))
        self.conv2 = nn.Conv2d(PLANES, PLANES, 3, (2, 1), 1, bias=False)
        self.bn2 = nn.BatchNorm2d(PLANES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x[:, None])))))
        return F.relu(self.bn2(self.conv2(h))).flatten(1, 2)


class Context(nn.Module):
    """A dilated convolution, weighted by what the whole clip and the second around each frame are like."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.linear_local = nn.Conv1d(inputs, outputs, 3, padding=dilation, dilation=dilation, bias=False)
        self.linear1, self.linear2 = nn.Conv1d(inputs, inputs // 2, 1), nn.Conv1d(inputs // 2, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        near = F.avg_pool1d(x, SEGMENT, SEGMENT, ceil_mode=True).repeat_interleave(SEGMENT, -1)[..., : x.shape[-1]]
        context = F.relu(self.linear1(x.mean(-1, keepdim=True) + near))
        return self.linear_local(x) * torch.sigmoid(self.linear2(context))


class DenseLayer(nn.Module):
    def __init__(self, inputs: int, growth: int, dilation: int) -> None:
        super().__init__()
        inner = 4 * growth
        self.nonlinear1, self.linear1 = normed(inputs), nn.Conv1d(inputs, inner, 1, bias=False)
        self.nonlinear2, self.cam_layer = normed(inner), Context(inner, growth, dilation)

    def forward(self, x: Tensor) -> Tensor:
        return self.cam_layer(self.nonlinear2(self.linear1(self.nonlinear1(x))))


class DenseBlock(nn.Module):
    """Layers that each see what all before them made."""

    def __init__(self, inputs: int, growth: int, layers: int, dilation: int) -> None:
        super().__init__()
        for i in range(layers):
            self.add_module(f"tdnnd{i + 1}", DenseLayer(inputs + i * growth, growth, dilation))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = torch.cat([x, layer(x)], 1)
        return x


class Transit(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.nonlinear, self.linear = normed(inputs), nn.Conv1d(inputs, inputs // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.nonlinear(x))


class Tdnn(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Conv1d(inputs, outputs, 5, stride=2, padding=2, bias=False)
        self.nonlinear = normed(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.nonlinear(self.linear(x))


class Pooled(nn.Module):
    """Mean and standard deviation over time: [B, C, T] -> [B, 2C]."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.mean(-1), x.std(-1)], -1)


class Projection(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Conv1d(inputs, outputs, 1, bias=False)
        self.nonlinear = normed(outputs, affine=False, relu=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.nonlinear(self.linear(x[..., None])[..., 0])


class SpeakerEncoder(nn.Module):
    """Sound at 16 kHz to a voice's embedding."""

    def __init__(self, c: SpeakerConfig) -> None:
        super().__init__()
        self.head = Front()
        parts: OrderedDict[str, nn.Module] = OrderedDict(tdnn=Tdnn(PLANES * MELS // 8, c.channels))
        width = c.channels
        for i, (layers, dilation) in enumerate(zip(c.layers, c.dilations, strict=True), 1):
            parts[f"block{i}"] = DenseBlock(width, c.growth, layers, dilation)
            width += layers * c.growth
            parts[f"transit{i}"] = Transit(width)
            width //= 2
        parts |= {"out_nonlinear": normed(width), "stats": Pooled(), "dense": Projection(2 * width, c.embedding)}
        self.xvector = nn.Sequential(parts)

    def forward(self, samples: Tensor) -> Tensor:
        """Samples [T] at 16 kHz -> [1, embedding]."""
        banks = fbank(samples, MELS)
        return self.xvector(self.head((banks - banks.mean(0, keepdim=True)).T[None]))
