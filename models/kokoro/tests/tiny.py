"""A Kokoro of a few thousand random parameters, for tests of everything but its voice."""

import torch

from models.kokoro.config import BertConfig, Config, VocoderConfig
from models.kokoro.modules import Kokoro

CONFIG = Config(
    istftnet=VocoderConfig(upsample_initial_channel=16),
    plbert=BertConfig(hidden_size=16, num_attention_heads=2, intermediate_size=24, num_hidden_layers=2),
    hidden_dim=16,
    dim_in=4,
    style_dim=8,
    max_dur=6,
    vocab={c: i for i, c in enumerate(" abcdefghijklmnopqrstuvwxyz.,!?;:ˈ", 1)},
)


def network(seed: int = 0) -> Kokoro:
    """Random weights, large enough that every part matters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Kokoro(CONFIG)
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and ".alpha" not in name:
                torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5)
        # NOTE: the phase of a source bin near zero is rounding noise; what follows from it is kept small here.
        generator = model.decoder.generator
        for conv in (*generator.noise_convs, *(c for block in generator.noise_res for c in block.convs2)):
            torch.nn.init.normal_(conv.weight, std=0.003)
        torch.nn.init.constant_(model.predictor.F0_proj.bias, 150.0)  # voiced speech
    return model.eval().requires_grad_(False)
