"""Kokoro's configuration: the checkpoint's `config.json`, typed, with the values that version 1.0 publishes."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from serving.errors import SetupError

SAMPLE_RATE = 24_000
MAX_PHONEMES = 510  # PL-BERT's 512 positions less the two boundary tokens


class Strict(BaseModel):
    """An unknown field in a checkpoint's configuration is something that this port would ignore: refuse it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class BertConfig(Strict):
    hidden_size: int = 768
    num_attention_heads: int = 12
    intermediate_size: int = 2048
    max_position_embeddings: int = 512
    num_hidden_layers: int = 12
    dropout: float = 0.1
    embedding_size: int = 128


class VocoderConfig(Strict):
    upsample_kernel_sizes: tuple[int, ...] = (20, 12)
    upsample_rates: tuple[int, ...] = (10, 6)
    gen_istft_hop_size: int = 5
    gen_istft_n_fft: int = 20
    resblock_dilation_sizes: tuple[tuple[int, ...], ...] = ((1, 3, 5), (1, 3, 5), (1, 3, 5))
    resblock_kernel_sizes: tuple[int, ...] = (3, 7, 11)
    upsample_initial_channel: int = 512


class Config(Strict):
    """What the network needs; `vocab` maps a phoneme to its token, 0 is the boundary."""

    istftnet: VocoderConfig = VocoderConfig()
    plbert: BertConfig = BertConfig()
    dim_in: int = 64
    dropout: float = 0.2
    hidden_dim: int = 512
    max_conv_dim: int = 512
    max_dur: int = 50
    multispeaker: bool = True
    n_layer: int = 3
    n_mels: int = 80
    n_token: int = 178
    style_dim: int = 128
    text_encoder_kernel_size: int = 5
    vocab: dict[str, int] = {}

    @property
    def samples_per_frame(self) -> int:
        """Audio samples of one duration frame: the decoder doubles frames, the generator and the iSTFT do the rest."""
        per_step = self.istftnet.gen_istft_hop_size
        for rate in self.istftnet.upsample_rates:
            per_step *= rate
        return 2 * per_step


def read(path: Path) -> Config:
    """The configuration in a `config.json`, or in a file that holds only its "vocab". Raises `SetupError`."""
    try:
        return Config.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} is not a Kokoro configuration: {error}", param="weights") from error
