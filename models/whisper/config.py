"""A checkpoint's dimensions, read from the real configuration files of the three layouts it comes in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

SAMPLE_RATE = 16_000
HOP = 160  # samples a mel frame
FRAMES = 3000  # mel frames a window of 30 s
FRAMES_PER_SECOND = SAMPLE_RATE // HOP
MULTILINGUAL_VOCAB = 51_865
HEAD_DIM = 64


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """openai-whisper's names. `alignment_heads`: (layer, head) pairs whose attention follows the speech."""

    n_mels: int
    n_audio_ctx: int
    n_audio_state: int
    n_audio_head: int
    n_audio_layer: int
    n_vocab: int
    n_text_ctx: int
    n_text_state: int
    n_text_head: int
    n_text_layer: int
    alignment_heads: tuple[tuple[int, int], ...] = ()

    @property
    def multilingual(self) -> bool:
        return self.n_vocab >= MULTILINGUAL_VOCAB

    @property
    def languages(self) -> int:
        """How many language tokens the vocabulary has."""
        return self.n_vocab - 51_765 - int(self.multilingual)

    @property
    def head_dim(self) -> int:
        return self.n_text_state // self.n_text_head

    @property
    def heads(self) -> tuple[tuple[int, int], ...]:
        """The alignment heads; where a checkpoint names none, all of the upper half of the decoder."""
        layers = range(self.n_text_layer // 2, self.n_text_layer)
        return self.alignment_heads or tuple((i, h) for i in layers for h in range(self.n_text_head))


def from_openai(dims: Mapping[str, int], heads: Sequence[Sequence[int]] = ()) -> WhisperConfig:
    """The `dims` of an openai-whisper checkpoint."""
    wanted = {field.name for field in fields(WhisperConfig)} - {"alignment_heads"}
    return WhisperConfig(**{name: int(dims[name]) for name in wanted}, alignment_heads=_pairs(heads))


def from_transformers(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> WhisperConfig:
    """`config.json` and `generation_config.json` of a hub repository."""
    return WhisperConfig(
        n_mels=config["num_mel_bins"],
        n_audio_ctx=config["max_source_positions"],
        n_audio_state=config["d_model"],
        n_audio_head=config["encoder_attention_heads"],
        n_audio_layer=config["encoder_layers"],
        n_vocab=config["vocab_size"],
        n_text_ctx=config["max_target_positions"],
        n_text_state=config["d_model"],
        n_text_head=config["decoder_attention_heads"],
        n_text_layer=config["decoder_layers"],
        alignment_heads=_pairs((generation or {}).get("alignment_heads") or ()),
    )


def from_shapes(tensors: Mapping[str, Tensor], heads: Sequence[Sequence[int]] = ()) -> WhisperConfig:
    """From tensors under our names, for layouts without a configuration; heads are 64 wide."""
    n_vocab, text_state = tensors["decoder.token_embedding.weight"].shape
    n_audio_ctx, audio_state = tensors["encoder.positional_embedding"].shape
    return WhisperConfig(
        n_mels=tensors["encoder.conv1.weight"].shape[1],
        n_audio_ctx=n_audio_ctx,
        n_audio_state=audio_state,
        n_audio_head=audio_state // HEAD_DIM,
        n_audio_layer=_layers(tensors, "encoder"),
        n_vocab=n_vocab,
        n_text_ctx=tensors["decoder.positional_embedding"].shape[0],
        n_text_state=text_state,
        n_text_head=text_state // HEAD_DIM,
        n_text_layer=_layers(tensors, "decoder"),
        alignment_heads=_pairs(heads),
    )


def _layers(tensors: Mapping[str, Tensor], side: str) -> int:
    return sum(name.startswith(f"{side}.blocks.") and name.endswith(".mlp.0.weight") for name in tensors)


def _pairs(heads: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((int(layer), int(head)) for layer, head in heads)
