"""Kokoro's checkpoints to our state dict: the packaged int8 ONNX export, and the hub's `.pth`.

In the export most weights have lost their names (folded weight norm, fused matrices), but every node still carries
the path of the module it came from; so the export is read node by node. It holds no random numbers and scales its
audio by 1.5; neither touches the weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from models.weights.onnx import OnnxGraph, OnnxNode
from serving.errors import SetupError

# What the export holds beside weights: 1 / alpha of the snakes, initial states, an inverse STFT, resize factors.
DERIVED = re.compile(r"/Reciprocal(_\d+)?_output_0$|/Constant\w*_output_0$|\.stft\.|^const_|_quant_rounded")
SMALL = 16  # initialisers up to this size are shapes, scales and axes


class _Export:
    """The export's tensors, with note taken of what has been read."""

    def __init__(self, graph: OnnxGraph) -> None:
        self.graph = graph
        self.read: set[str] = set()

    def tensor(self, name: str) -> np.ndarray:
        if name not in self.graph.tensors:
            raise SetupError(f"the ONNX export has no initialiser {name}", param="weights")
        self.read.add(name)
        return self.graph.tensors[name]

    def dequantised(self, name: str, scale: str, zero: str | None, axis: int) -> np.ndarray:
        """(q - zero) * scale in float32, both one value or one a slice of `axis`."""
        values = self.tensor(name)

        def along(array: np.ndarray) -> np.ndarray:
            shape = [1] * values.ndim
            shape[axis] = -1
            return array.reshape(shape) if array.ndim else array

        shifted = values.astype(np.int32)
        if zero:
            shifted = shifted - along(self.tensor(zero).astype(np.int32))
        return shifted.astype(np.float32) * along(self.tensor(scale))

    def packed(self, node: OnnxNode, axis: int) -> np.ndarray:
        """The second input of an integer product. Its zero point may be another tensor's, where they are equal."""
        name = node.inputs[1]
        zero = node.inputs[3] if len(node.inputs) > 3 else None
        return self.dequantised(name, name.removesuffix("_quantized") + "_scale", zero, axis)

    def unread(self) -> list[str]:
        """Initialisers that look like weights and were not read; int64 is for indices."""
        tensors = self.graph.tensors.items()
        large = [name for name, value in tensors if value.size > SMALL and value.dtype != np.int64]
        return [name for name in large if name not in self.read and not DERIVED.search(name)]


Named = Mapping[str, np.ndarray]


def _conv(export: _Export, node: OnnxNode) -> Named:
    return {"weight": export.packed(node, 0)}


def _linear(export: _Export, node: OnnxNode) -> Named:
    return {"weight": export.packed(node, -1).T}


def _plain(export: _Export, node: OnnxNode) -> Named:
    return {"weight": export.tensor(node.inputs[1])}


def _plain_linear(export: _Export, node: OnnxNode) -> Named:
    return {"weight": export.tensor(node.inputs[1]).T}


def _embedding(export: _Export, node: OnnxNode) -> Named:
    name = node.inputs[0]
    reader = next(n for n in export.graph.nodes if n.op == "DequantizeLinear" and n.inputs[0] == node.outputs[0])
    return {"weight": export.dequantised(name, reader.inputs[1], reader.inputs[2], 0)}


def _lstm(export: _Export, node: OnnxNode) -> Named:
    """Both directions; W and R are stored [2, in, 4H], B [2, 8H] holds the input biases before the recurrent ones."""
    w, r, b = node.inputs[1:4]
    w_scale, w_zero, r_scale, r_zero = node.inputs[8:12]
    weights_x = export.dequantised(w, w_scale, w_zero, 0)
    weights_h = export.dequantised(r, r_scale, r_zero, 0)
    biases = export.tensor(b)
    named: dict[str, np.ndarray] = {}
    for i, suffix in enumerate(("", "_reverse")):
        of_x, of_h = np.split(biases[i], 2)
        named[f"weight_ih_l0{suffix}"] = _gates(weights_x[i].T)
        named[f"weight_hh_l0{suffix}"] = _gates(weights_h[i].T)
        named[f"bias_ih_l0{suffix}"], named[f"bias_hh_l0{suffix}"] = _gates(of_x), _gates(of_h)
    return named


def _gates(rows: np.ndarray) -> np.ndarray:
    """ONNX orders an LSTM's gates input, output, forget, cell; torch input, forget, cell, output."""
    i, o, f, c = np.split(rows, 4)
    return np.concatenate([i, f, c, o])


READERS: Mapping[str, Callable[[_Export, OnnxNode], Named]] = {
    "ConvInteger": _conv,
    "MatMulInteger": _linear,
    "Conv": _plain,
    "ConvTranspose": _plain,
    "MatMul": _plain_linear,
    "Gather": _embedding,
    "DynamicQuantizeLSTM": _lstm,
}


def module_path(node: str) -> str:
    """The module that a node's name says it came from, in the checkpoint's terms.

    A scope repeats the list that it is an item of ("cnn.0/cnn.0.1" is cnn.0.1). The pitch and energy stacks were
    called from the top level, so the predictor is missing from their scopes.
    """
    scopes: list[str] = []
    for scope in node.strip("/").split("/")[:-1]:
        if scopes and scope.startswith(scopes[-1] + "."):
            scopes.pop()
        scopes.append(scope)
    if len(scopes) < 2:
        return ""
    path = ".".join(scopes[1:])
    if scopes[0] == "encoder" and re.match(r"(F0|N)\.|F0_proj|N_proj|shared", path):
        return f"predictor.{path}"
    return path


def _initialiser(parameter: str) -> str:
    return ("decoder." if parameter.startswith("decoder.") else "encoder.") + parameter


def from_onnx(graph: OnnxGraph, module: nn.Module) -> dict[str, Tensor]:
    """The export as `module`'s float32 state dict. Raises `SetupError` for what is missing or left over.

    Layers that run more than once have nodes with numbered names, which are no module's, so the first is taken.
    """
    export = _Export(graph)
    owners = {name for name, _ in module.named_modules()}
    wanted = dict(module.state_dict())
    found: dict[str, np.ndarray] = {}
    for node in graph.nodes:
        path = module_path(node.name)
        if node.op in READERS and path in owners and _weight_input(graph, node):
            found |= {f"{path}.{leaf}": value for leaf, value in READERS[node.op](export, node).items()}
    for name in wanted.keys() - found.keys():
        found[name] = export.tensor(_initialiser(name))
    left = sorted(export.unread()) + sorted(found.keys() - wanted.keys())
    if left:
        raise SetupError(f"{len(left)} tensors of the ONNX export have no place: {left[:8]}", param="weights")
    return {name: torch.from_numpy(np.array(found[name], order="C")) for name in wanted}


def _weight_input(graph: OnnxGraph, node: OnnxNode) -> bool:
    """Whether the node multiplies or looks up a stored matrix, rather than two activations or a shape."""
    name = node.inputs[0] if node.op == "Gather" else node.inputs[1]
    return name in graph.tensors and graph.tensors[name].ndim > 1


def from_pth(path: Path) -> dict[str, Tensor]:
    """The hub's checkpoint: a dict of parts, saved from a data-parallel wrapper, with weight norm unfolded.

    PL-BERT's pooler and position ids are not used by the model and are left out.
    """
    try:
        parts = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its unpickler meets
        raise SetupError(f"cannot read {path}: {error}", param="weights") from error
    flat = {
        f"{part}.{name.removeprefix('module.')}": value.float()
        for part, tensors in parts.items()
        for name, value in tensors.items()
    }
    unused = re.compile(r"^bert\.(pooler\.|embeddings\.position_ids$)")
    return dict(folded((name, value) for name, value in flat.items() if not unused.search(name)))


def folded(tensors: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
    """Weight norm multiplied out: w = g v / |v|, the norm taken over all but the first axis."""
    pending: dict[str, Tensor] = {}
    for name, value in tensors:
        stem, _, kind = name.rpartition(".")
        if kind not in ("weight_g", "weight_v"):
            yield name, value
            continue
        other = pending.pop(f"{stem}.{'weight_v' if kind == 'weight_g' else 'weight_g'}", None)
        if other is None:
            pending[name] = value
        else:
            g, v = (value, other) if kind == "weight_g" else (other, value)
            yield f"{stem}.weight", torch._weight_norm(v, g, 0)
    if pending:
        raise SetupError(f"half a weight norm: {sorted(pending)[:8]}", param="weights")
