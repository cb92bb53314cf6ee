"""What a deployment promises about bits, and how it is kept.

`invariant`: a row's result does not depend on the rows beside it. `prepare` gives linears, convolutions and LSTMs
kernels for which that holds, in float32; `probe` proves every module, or start-up ends with the one that fails.
`fast`: any kernel.

Torch's own linears choose their kernel by the number of rows, and the bits follow. Two ways do not: weights packed
for oneDNN, never with a single row, for the shapes where a trial shows it; and tiles of a constant 16 rows, for
which it holds by construction. Convolutions and recurrences run one sample at a time. Activations compute the end
of a tensor that does not fill a vector register by other instructions, so theirs are padded.

Modules are changed in place, through their `forward`: names, parameters and hooks stay. What calls `F.linear`, a
convolution or an activation by itself is not seen here: such activations need rows of a multiple of 16 elements
(all but the exact GELU and ReLU), and invariance suites see the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from serving.alignment import aligned
from serving.errors import SetupError, nearest
from serving.precision import entered

__all__ = ["MODES", "entered", "prepare", "probe"]

MODES = ("fast", "invariant")
TILE = 16
LARGE = 1 << 21  # weights from which the packed kernel wins in `fast` at the few rows of a decoding step
MANY = 128  # rows from which it does not
TRIALS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16, 17, 23, 24, 31, 32, 33, 48, 63, 64, 100)
FEW = (2, 3, 7, 8, 16, 17, 33)  # trials of layers that take milliseconds a call
CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

ACTIVATIONS = (nn.GELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.ELU, nn.Mish)
REGISTER = 64  # elements: a multiple of every vector width that a kernel unrolls to

_proven: dict[tuple[Any, ...], bool] = {}


class Packed:
    """A linear whose weights are packed for oneDNN. A single row is padded to two: that kernel differs."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out = weight.shape[0]
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 8)
        self.bias = None if bias is None else bias.detach()

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        count = len(rows)
        if count == 1:
            rows = rows.expand(2, -1)
        found = torch.ops.mkldnn._linear_pointwise(aligned(rows.contiguous()), self.weight, self.bias, "none", [], "")
        return found[:count].reshape(*x.shape[:-1], self.out)


class Fast(Packed):
    """A linear by the kernel that its number of rows asks for: the packed one at a few, torch's at one and at many.

    At one row torch's reads the weights as fast as memory gives them, where the packed one computes a second row.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.plain = weight

    def __call__(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():  # which cannot read packed weights
            return F.linear(x, self.plain, self.bias)
        few = 1 < x.numel() // x.shape[-1] < MANY
        return super().__call__(x) if few else F.linear(x, self.plain, self.bias)


class Tiles:
    """A linear in products of 16 rows, whatever the number of rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        padded = aligned(F.pad(rows, (0, 0, 0, -len(rows) % TILE)))  # padding nothing is a view
        found = [F.linear(tile, self.weight, self.bias) for tile in padded.split(TILE)]
        return torch.cat(found)[: len(rows)].reshape(*x.shape[:-1], self.weight.shape[0])


class OneByOne:
    """A module over [B, ...] that runs each sample in a batch of one."""

    def __init__(self, forward: Callable[[Tensor], Tensor], dims: int) -> None:
        self.forward, self.dims = forward, dims  # dims of an input with a batch

    def __call__(self, x: Tensor) -> Tensor:
        if x.dim() < self.dims or len(x) == 1:
            return self.forward(aligned(x))
        return torch.cat([self.forward(aligned(sample)) for sample in x.split(1)])


class Aligned:
    """An elementwise module on whole vector registers, so that no element is computed as the rest of a tensor."""

    def __init__(self, forward: Callable[[Tensor], Tensor]) -> None:
        self.forward = forward

    def __call__(self, x: Tensor) -> Tensor:
        count = x.numel()
        found = self.forward(F.pad(x.reshape(-1), (0, -count % REGISTER)))
        return found[:count].view(x.shape)


class Recurrent:
    """An LSTM or GRU that runs each sequence in a batch of one."""

    def __init__(self, module: nn.RNNBase, forward: Callable[..., Any]) -> None:
        self.batch_dim = 0 if module.batch_first else 1
        self.forward = forward

    def __call__(self, x: Tensor, state: Any = None) -> Any:
        if not isinstance(x, Tensor):
            raise TypeError("a recurrence in invariant numerics takes padded tensors, not packed sequences")
        if x.dim() < 3 or x.shape[self.batch_dim] == 1:
            return self.forward(aligned(x), state)
        pairs = isinstance(state, tuple)
        parts = [self._split(part) for part in state] if pairs else [self._split(state)] if state is not None else []
        found = []
        for i, sample in enumerate(x.split(1, self.batch_dim)):
            held = tuple(part[i] for part in parts)
            found.append(self.forward(aligned(sample), None if state is None else held if pairs else held[0]))
        return self._join(found)

    def _split(self, part: Tensor) -> tuple[Tensor, ...]:
        return tuple(piece.contiguous() for piece in part.split(1, 1))

    def _join(self, found: list[Any]) -> Any:
        out = torch.cat([one[0] for one in found], self.batch_dim)
        if isinstance(found[0][1], tuple):
            return out, tuple(torch.cat(parts, 1) for parts in zip(*(one[1] for one in found), strict=True))
        return out, torch.cat([one[1] for one in found], 1)


def prepare(modules: Mapping[str, nn.Module], mode: str, device: str = "cpu") -> None:
    """Give the modules the kernels of a mode, in place, on the device where they already are."""
    if mode not in MODES:
        raise SetupError(f'No numerics mode "{mode}".{nearest(mode, MODES)}', param="numerics")
    for path, module in _walk(modules):
        if isinstance(getattr(module, "forward", None), (Packed, Tiles, OneByOne, Aligned, Recurrent)):
            continue
        kernel = _invariant(path, module, device) if mode == "invariant" else _fast(module, device)
        if kernel is not None:
            module.forward = kernel


def _walk(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, with its path."""
    seen: set[int] = set()
    for name, root in modules.items():
        for path, module in root.named_modules():
            if id(module) not in seen:
                seen.add(id(module))
                yield f"{name}.{path}".rstrip("."), module


def _fast(module: nn.Module, device: str) -> Callable[..., Any] | None:
    if type(module) is nn.Linear and device == "cpu" and module.weight.numel() >= LARGE and _packs(module.weight.dtype):
        return Fast(module.weight, module.bias)
    return None


def _packs(dtype: torch.dtype) -> bool:
    """Whether oneDNN packs weights of this type here: bfloat16 needs instructions that not every CPU has."""
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _invariant(path: str, module: nn.Module, device: str) -> Callable[..., Any] | None:
    for parameter in module.parameters(recurse=False):
        if parameter.is_floating_point() and parameter.dtype != torch.float32:
            raise SetupError(f"invariant numerics are promised in float32; {path} has {parameter.dtype}")
    if isinstance(module, nn.MultiheadAttention):
        raise SetupError(f"{path}: nn.MultiheadAttention is not invariant; use serving.attention.dense")
    if isinstance(module, nn.Linear):
        return _linear(module, device)
    if isinstance(module, CONVS):
        return OneByOne(module.forward, module.weight.dim())
    if isinstance(module, nn.RNNBase):
        return Recurrent(module, module.forward)
    if isinstance(module, ACTIVATIONS):
        return Aligned(module.forward)
    return None


def _linear(module: nn.Linear, device: str) -> Packed | Tiles:
    if device == "cpu":
        packed = Packed(module.weight, module.bias)
        if _holds(packed, module):
            return packed
    return Tiles(module.weight, module.bias)


def _holds(kernel: Callable[[Tensor], Tensor], module: nn.Linear) -> bool:
    """Whether a kernel's rows are the same at every count and offset tried; once a shape and process."""
    key = (module.weight.shape, module.bias is not None, torch.get_num_threads())
    if key not in _proven:
        _proven[key] = _same_rows(kernel, module.in_features, TRIALS if module.weight.numel() < LARGE else FEW)
    return _proven[key]


def _same_rows(kernel: Callable[[Tensor], Tensor], width: int, counts: tuple[int, ...]) -> bool:
    x = _samples(counts[-1] + 4, width)
    whole = kernel(x)
    for i, count in enumerate((1, *counts)):
        start = i % 4
        if not torch.equal(kernel(x[start : start + count]), whole[start : start + count]):
            return False
    return True


def _samples(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def probe(modules: Mapping[str, nn.Module], mode: str) -> None:
    """Prove the mode on the modules' own shapes, one operation after another, or raise `SetupError` naming it.

    Results are kept by shape for the life of the process. Only `invariant` promises anything.
    """
    if mode != "invariant":
        return
    for path, module in _walk(modules):
        trial = _trial(module)
        if trial is not None:
            key = (type(module), trial[1], module.extra_repr(), torch.get_num_threads())
            _prove(path, key, *trial)
    for name, (op, width) in FUNCTIONS.items():
        _prove(name, (name, torch.get_num_threads()), op, (3, width))


FUNCTIONS: Mapping[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "softmax": (partial(F.softmax, dim=-1), 67),
    "log_softmax": (partial(F.log_softmax, dim=-1), 67),
    "gelu": (F.gelu, 67),
    "tanh": (torch.tanh, 67),
    "exp": (torch.exp, 67),
    "gelu_tanh": (partial(F.gelu, approximate="tanh"), 48),
    "silu": (F.silu, 48),
    "sigmoid": (torch.sigmoid, 48),
}


def _trial(module: nn.Module) -> tuple[Callable[[Tensor], Tensor], tuple[int, ...]] | None:
    """A function of a batch and the shape of one sample, for the modules that have arithmetic of their own."""
    if isinstance(module, nn.Linear):
        return module, (module.in_features,)
    if isinstance(module, CONVS):
        return module, (module.in_channels, *[64 if module.weight.dim() == 3 else 16] * (module.weight.dim() - 2))
    if isinstance(module, nn.RNNBase):
        return partial(_recur, module), (24, module.input_size)
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return module, tuple(module.normalized_shape)
    if isinstance(module, nn.GroupNorm):
        return module, (module.num_channels, 64)
    if isinstance(module, ACTIVATIONS):
        return module, (3, 67)
    return None


def _recur(module: nn.RNNBase, x: Tensor) -> Tensor:
    found = module(x if module.batch_first else x.transpose(0, 1))[0]
    return found if module.batch_first else found.transpose(0, 1)


def _prove(path: str, key: tuple[Any, ...], op: Callable[[Tensor], Tensor], sample: tuple[int, ...]) -> None:
    if key not in _proven:
        device = next(op.parameters()).device if isinstance(op, nn.Module) and list(op.parameters()) else "cpu"
        with torch.inference_mode():
            _proven[key] = _same_samples(op, _samples(7, *sample).to(device))
    if not _proven[key]:
        raise SetupError(f"{path}: its result for a row depends on the batch, so numerics cannot be invariant here")


def _same_samples(op: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    whole = op(x)
    return all(
        torch.equal(op(x[start:stop].clone()), whole[start:stop]) for start, stop in ((0, 1), (6, 7), (1, 3), (2, 7))
    )
