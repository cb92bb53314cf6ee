"""Every layout loads with nothing missing and nothing left over; the released sizes have their published counts."""

import json
import struct

import pytest
import torch
import transformers

from models.weights.ctranslate2 import DTYPES
from models.weights.loading import load_strict, on_meta
from models.whisper import config, weights
from models.whisper.modules import Whisper
from models.whisper.tests import reference
from serving.errors import SetupError

TURBO = {"d_model": 1280, "encoder_layers": 32, "decoder_layers": 4, "num_mel_bins": 128, "vocab_size": 51_866}
RELEASED = {  # configuration and number of parameters as the model cards give it
    "large-v3-turbo": (TURBO, 808_878_080),
    "large-v3": (TURBO | {"decoder_layers": 32}, 1_543_490_560),
}


def transformers_config(d_model: int, heads: int, **sizes: int) -> transformers.WhisperConfig:
    return transformers.WhisperConfig(
        d_model=d_model,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * d_model,
        decoder_ffn_dim=4 * d_model,
        **sizes,
    )


def loaded(folder, **kwargs):
    found, tensors = weights.read(folder, **kwargs)
    return found, load_strict(on_meta(lambda: Whisper(found)), tensors, dtype=torch.float32)


def test_openai_layout(tiny, folder):
    found, net = loaded(folder)
    assert found == config.from_openai(vars(tiny.dims))
    ours = net.state_dict()
    assert set(ours) == {*tiny.state_dict(), "decoder.head.weight"}
    for name, tensor in tiny.state_dict().items():
        assert torch.equal(ours[name], tensor), name
    assert net.decoder.head.weight is net.decoder.token_embedding.weight


def test_transformers_layout(tmp_path):
    torch.manual_seed(3)
    made = transformers.WhisperForConditionalGeneration(
        transformers_config(128, 2, encoder_layers=2, decoder_layers=2, vocab_size=51_865)
    )
    made.generation_config.alignment_heads = [[0, 1], [1, 0]]
    made.save_pretrained(tmp_path)
    found, net = loaded(tmp_path)
    assert found.alignment_heads == ((0, 1), (1, 0))
    assert torch.equal(net.decoder.blocks[1].mlp[2].weight, made.model.decoder.layers[1].fc2.weight)
    assert torch.equal(net.encoder.blocks[0].attn.out.bias, made.model.encoder.layers[0].self_attn.out_proj.bias)


@pytest.mark.parametrize("size", RELEASED)
def test_released_dimensions(size):
    sizes, count = RELEASED[size]
    theirs = transformers_config(heads=20, **sizes)
    with torch.device("meta"):
        made = transformers.WhisperForConditionalGeneration(theirs)
    tensors = weights.from_transformers(made.state_dict())
    net = load_strict(on_meta(lambda: Whisper(config.from_transformers(theirs.to_dict()))), tensors)
    assert sum(p.numel() for p in net.parameters()) + net.encoder.positional_embedding.numel() == count


def text(value: str) -> bytes:
    return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"


def fused(parts: list[torch.Tensor | None], like: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros_like(like) if part is None else part for part in parts])


def ctranslate2_variables(state: dict[str, torch.Tensor], heads: int) -> dict[str, torch.Tensor]:
    """The names and fusions of CTranslate2's WhisperSpec, written from a reference state."""
    out = {f"{side}/num_heads": torch.tensor(heads, dtype=torch.int16) for side in ("encoder", "decoder")}
    out["decoder/activation"], out["decoder/pre_norm"] = (torch.tensor(n, dtype=torch.int8) for n in (3, 1))
    out["decoder/alignment_layer"] = torch.tensor(-1, dtype=torch.int16)
    for name in ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"):
        out[f"encoder/{name.replace('.', '/')}"] = state[f"encoder.{name}"]
    out["decoder/embeddings/weight"] = state["decoder.token_embedding.weight"]
    for side, last in (("encoder", "ln_post"), ("decoder", "ln")):
        out[f"{side}/position_encodings/encodings"] = state[f"{side}.positional_embedding"]
        norms = {f"{side}/layer_norm": f"{side}.{last}"}
        for i in range(2):
            block, layer = f"{side}.blocks.{i}", f"{side}/layer_{i}"
            norms |= {
                f"{layer}/self_attention/layer_norm": f"{block}.attn_ln",
                f"{layer}/ffn/layer_norm": f"{block}.mlp_ln",
            }
            attentions = {f"{layer}/self_attention": (f"{block}.attn", (("query", "key", "value"), ("out",)))}
            if side == "decoder":
                norms[f"{layer}/attention/layer_norm"] = f"{block}.cross_attn_ln"
                attentions[f"{layer}/attention"] = (f"{block}.cross_attn", (("query",), ("key", "value"), ("out",)))
            for place, (source, groups) in attentions.items():
                for number, group in enumerate(groups):
                    for kind in ("weight", "bias"):
                        parts = [state.get(f"{source}.{part}.{kind}") for part in group]
                        out[f"{place}/linear_{number}/{kind}"] = fused(parts, state[f"{source}.out.{kind}"])
            for number, part in enumerate(("mlp.0", "mlp.2")):
                for kind in ("weight", "bias"):
                    out[f"{layer}/ffn/linear_{number}/{kind}"] = state[f"{block}.{part}.{kind}"]
        for place, source in norms.items():
            out[f"{place}/gamma"], out[f"{place}/beta"] = state[f"{source}.weight"], state[f"{source}.bias"]
    return out


def write(folder, variables):
    body = struct.pack("<I", 6) + text("WhisperSpec") + struct.pack("<II", 3, len(variables))
    for name, tensor in variables.items():
        raw = tensor.contiguous().reshape(-1).numpy().tobytes()
        head = struct.pack(f"<B{tensor.ndim}I", tensor.ndim, *tensor.shape)
        body += text(name) + head + struct.pack("<BI", DTYPES.index(tensor.dtype), len(raw)) + raw
    alias = text("decoder/projection/weight") + text("decoder/embeddings/weight")
    (folder / "model.bin").write_bytes(body + struct.pack("<I", 1) + alias)
    (folder / "config.json").write_text(json.dumps({"alignment_heads": [[1, 0]]}))


@pytest.fixture(scope="module")
def halves():
    return {name: tensor.half() for name, tensor in reference.model(False).state_dict().items()}


@pytest.mark.parametrize("digest", [None, "0123456789abcdef0123"])
def test_ctranslate2_layout(halves, tmp_path, digest):
    write(tmp_path, ctranslate2_variables(halves, heads=2))
    found, net = loaded(tmp_path, cache=tmp_path, digest=digest)
    assert found == config.from_openai(vars(reference.dimensions(False)), [[1, 0]])
    for name, tensor in halves.items():
        assert torch.equal(net.state_dict()[name], tensor.float()), name
    assert len(list(tmp_path.rglob("*.safetensors"))) == (digest is not None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"decoder/activation": torch.tensor(0, dtype=torch.int8)}, "activation=0, not 3"),
        ({"encoder/num_heads": torch.tensor(4, dtype=torch.int16)}, "num_heads=4, not 2"),
        ({"decoder/layer_0/self_attention/linear_0/bias": torch.ones(384).half()}, "biases the keys"),
        ({"decoder/extra/weight": torch.ones(2).half()}, r"1 left over: decoder\.extra\.weight"),
        ({"encoder/conv1/bias": None}, r"1 missing: encoder\.conv1\.bias"),
    ],
)
def test_what_does_not_fit_is_refused(halves, tmp_path, change, reason):
    variables = ctranslate2_variables(halves, heads=2) | change
    write(tmp_path, {name: tensor for name, tensor in variables.items() if tensor is not None})
    with pytest.raises(SetupError, match=reason):
        loaded(tmp_path)


def test_a_folder_without_a_checkpoint(tmp_path):
    with pytest.raises(SetupError, match=r"has no config\.json"):
        weights.read(tmp_path)
