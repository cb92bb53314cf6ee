"""kokoro's `KModel` with the real weights: durations, prosody, source and audio of short phrases in several voices.

`weights` is a safetensors file under KModel's own names without its weight norm (what the port caches as
`converted/kokoro-*.safetensors`); `voice` is a raw float32 style table of the npm package kokoro-js.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from kokoro.model import KModel
from safetensors.torch import load_file
from torch import Tensor

from parity.harness.record import Recording

CONFIG: dict[str, Any] = {
    "istftnet": {
        "upsample_kernel_sizes": [20, 12],
        "upsample_rates": [10, 6],
        "gen_istft_hop_size": 5,
        "gen_istft_n_fft": 20,
        "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
        "resblock_kernel_sizes": [3, 7, 11],
        "upsample_initial_channel": 512,
    },
    "dim_in": 64,
    "dropout": 0.2,
    "hidden_dim": 512,
    "max_dur": 50,
    "n_layer": 3,
    "n_mels": 80,
    "n_token": 178,
    "style_dim": 128,
    "text_encoder_kernel_size": 5,
    "plbert": {
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 2048,
        "max_position_embeddings": 512,
        "num_hidden_layers": 12,
        "dropout": 0.1,
    },
    "vocab": {},
}
# tokens: "ɡˈʊd mˈɔɹnɪŋ." / "θˈæŋk ju fɔɹ lˈɪsənɪŋ." / "sˈiː juː təmˈɒɹQ."
CASES = {
    "heart": {
        "tokens": [92, 156, 135, 46, 16, 55, 156, 76, 123, 56, 102, 112, 4],
        "speed": 1.0,
        "seed": 7,
        "names": True,
        "needs": ["weights", "voice"],
    },
    "michael_fast": {
        "tokens": [119, 156, 72, 112, 53, 16, 52, 63, 16, 48, 76, 123, 16, 54, 156, 102, 61, 83, 56, 102, 112, 4],
        "speed": 1.5,
        "seed": 8,
        "needs": ["weights", "voice"],
    },
    "emma_slow": {
        "tokens": [61, 156, 51, 158, 16, 52, 63, 158, 16, 62, 83, 55, 156, 71, 123, 33, 4],
        "speed": 0.8,
        "seed": 9,
        "needs": ["weights", "voice"],
    },
}
STRIDE = 7  # coprime to the widths


def model(weights: dict[str, Tensor]) -> KModel:
    """KModel without its download, its random start and its weight norms, which the weights have multiplied out."""
    load, torch.load = torch.load, lambda *args, **kwargs: {}
    try:
        with torch.device("meta"):
            made = KModel(repo_id="none", config=CONFIG, model="none")
    finally:
        torch.load = load
    made = made.to_empty(device="cpu")
    for module in made.modules():
        if hasattr(module, "weight_g"):
            torch.nn.utils.remove_weight_norm(module)
    made.decoder.generator.stft.window = torch.hann_window(20)
    made.bert.embeddings.position_ids.copy_(torch.arange(512)[None])
    made.bert.embeddings.token_type_ids.zero_()
    missing, unexpected = made.load_state_dict(weights, strict=False)
    assert not unexpected
    for name in missing:  # the pooler is never used; instance norms have no affine part in the checkpoint
        assert name.startswith("bert.pooler.") or ".norm." in name, name
        torch.nn.init.constant_(made.get_parameter(name), float(name.endswith("weight")))
    return made.eval().requires_grad_(False)


def record(case: Recording) -> None:
    """One phrase, with the noise of its seed."""
    c = case.config
    made = model(load_file(case.external("weights")))
    table = torch.from_numpy(np.fromfile(case.external("voice"), np.float32).reshape(510, 256))
    style = table[len(c["tokens"]) - 1][None]
    tokens = torch.tensor([[0, *c["tokens"], 0]])
    case.inputs(style=style, tokens=tokens)
    found: dict[str, Tensor] = {}

    def source(transform: Any) -> Any:
        def inner(samples: Tensor) -> Any:
            found["source"] = samples
            return transform(samples)

        return inner

    stft = made.decoder.generator.stft
    stft.transform = source(stft.transform)
    made.predictor.duration_proj.register_forward_hook(lambda _, args, out: found.update(logits=out))
    made.decoder.register_forward_pre_hook(lambda _, args: found.update(f0=args[1], energy=args[2]))
    made.decoder.generator.register_forward_pre_hook(lambda _, args: found.update(trunk=args[0]))
    torch.manual_seed(c["seed"])
    audio, durations = made.forward_with_tokens(tokens, style, c["speed"])
    found["durations"] = found.pop("logits").sigmoid().sum(-1) / c["speed"]
    case.put("taps", {name: found[name] for name in ("durations", "f0", "energy")})
    case.put("taps", {name: found[name] for name in ("trunk", "source")}, stride=STRIDE)
    case.outputs(frames=durations, audio=audio)
    if c.get("names"):
        case.values["names"] = {n: "x".join(map(str, p.shape)) for n, p in made.named_parameters()}
