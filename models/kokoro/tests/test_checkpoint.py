"""Checkpoints in each of their layouts come to the same network, and nothing is missing or left over."""

import json

import numpy as np
import pytest
import torch

from models.kokoro.checkpoint import PARAMETERS, build, load_port, packaged_onnx
from models.kokoro.modules import Kokoro
from models.kokoro.tests import tiny
from models.kokoro.weights import from_onnx, from_pth, module_path
from models.weights import onnx
from models.weights.loading import on_meta
from serving.core.contract import Options
from serving.errors import SetupError


@pytest.mark.parametrize(
    ("node", "path"),
    [
        ("/encoder/text_encoder/cnn.0/cnn.0.0/Conv_quant", "text_encoder.cnn.0.0"),
        ("/encoder/F0.1/norm1/fc/Gemm_MatMul_quant", "predictor.F0.1.norm1.fc"),
        ("/encoder/N_proj/Conv_quant", "predictor.N_proj"),
        ("/encoder/shared/LSTM_quant", "predictor.shared"),
        ("/encoder/predictor/lstm/LSTM_quant", "predictor.lstm"),
        ("/decoder/decoder/encode/conv1/Conv_quant", "decoder.encode.conv1"),
        ("/decoder/decoder/generator/noise_res.0/convs1.0/Conv_quant", "decoder.generator.noise_res.0.convs1.0"),
        ("Gather_token_1", ""),
    ],
)
def test_nodes_name_their_modules(node, path):
    assert module_path(node) == path


@pytest.fixture(scope="module")
def export():
    return onnx.parse(packaged_onnx())


@pytest.fixture(scope="module")
def meta():
    from models.kokoro.config import Config

    return on_meta(lambda: Kokoro(Config()))


def test_the_packaged_export_covers_the_network(export, meta):
    tensors = from_onnx(export, meta)
    assert {n: t.shape for n, t in tensors.items()} == {n: t.shape for n, t in meta.state_dict().items()}
    assert sum(t.numel() for t in tensors.values()) == PARAMETERS
    assert all(t.dtype == torch.float32 and t.isfinite().all() for t in tensors.values())


def test_a_tensor_too_many_or_too_few_is_refused(export, meta):
    more = onnx.OnnxGraph(export.nodes, {**export.tensors, "stray.weight": np.zeros((8, 8), np.float32)})
    with pytest.raises(SetupError, match=r"no place: \['stray.weight'\]"):
        from_onnx(more, meta)
    less = {name: t for name, t in export.tensors.items() if name != "encoder.bert_encoder.bias"}
    with pytest.raises(SetupError, match=r"no initialiser encoder\.bert_encoder\.bias"):
        from_onnx(onnx.OnnxGraph(export.nodes, less), meta)


def save_as_the_hub(net, path):
    """kokoro-v1_0.pth: parts with a wrapper's prefix, weight norm unfolded, PL-BERT with a pooler."""
    parts = {}
    for name, value in net.state_dict().items():
        part, rest = name.split(".", 1)
        held = parts.setdefault(part, {})
        module = net.get_submodule(name.rpartition(".")[0])
        if isinstance(module, (torch.nn.Conv1d, torch.nn.ConvTranspose1d)) and name.endswith(".weight"):
            norm = value.flatten(1).norm(dim=1).view(-1, *[1] * (value.dim() - 1))
            held[f"module.{rest}_g"], held[f"module.{rest}_v"] = norm, 3 * value
        else:
            held[f"module.{rest}"] = value
    parts["bert"]["module.pooler.weight"] = torch.zeros(2, 2)
    parts["bert"]["module.embeddings.position_ids"] = torch.arange(4)[None]
    torch.save(parts, path)


def test_the_hubs_layout(tmp_path):
    net = tiny.network()
    save_as_the_hub(net, tmp_path / "kokoro-v1_0.pth")
    loaded = build(tiny.CONFIG, from_pth(tmp_path / "kokoro-v1_0.pth"))
    for name, value in net.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value, atol=1e-6, rtol=1e-6)


def test_half_a_weight_norm_is_refused(tmp_path):
    torch.save({"decoder": {"module.x.weight_g": torch.ones(1)}}, tmp_path / "half.pth")
    with pytest.raises(SetupError, match="half a weight norm"):
        from_pth(tmp_path / "half.pth")


def test_a_file_that_is_no_checkpoint(tmp_path):
    (tmp_path / "bad.pth").write_bytes(b"not a checkpoint")
    with pytest.raises(SetupError, match="cannot read"):
        from_pth(tmp_path / "bad.pth")


def test_a_folder_like_the_hubs_makes_a_port(tmp_path):
    save_as_the_hub(tiny.network(), tmp_path / "kokoro-v1_0.pth")
    (tmp_path / "config.json").write_text(tiny.CONFIG.model_dump_json())
    (tmp_path / "voices").mkdir()
    torch.save(torch.zeros(510, 1, 256), tmp_path / "voices" / "af_zero.pt")
    port = load_port(Options(weights=str(tmp_path)))
    assert port.voices() == ["af_zero"]


def test_an_unknown_field_of_a_configuration_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**tiny.CONFIG.model_dump(), "n_layers": 3}))
    with pytest.raises(SetupError, match="n_layers"):
        load_port(Options(weights=str(tmp_path)))


def test_a_mistyped_option_names_the_nearest():
    with pytest.raises(SetupError, match=r'options.espeek.*Did you mean "espeak"'):
        load_port(Options(model={"espeek": True}))
