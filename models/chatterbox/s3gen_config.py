"""Dimensions of S3Gen: every published variant has the same, but for Turbo's mean flow; tests use small ones."""

from __future__ import annotations

from dataclasses import dataclass, field

SAMPLE_RATE = 24_000  # of the sound that it makes
PROMPT_RATE = 16_000  # of the clip that the tokenizer and the speaker encoder hear
TOKEN_RATE = 25
FRAMES_PER_TOKEN = 2
MELS = 80
SPEECH_TOKENS = 6561  # 3 ** 8; ids from here on start, stop or pad
LOOKAHEAD = 3  # tokens that the encoder sees beyond the one it encodes
SILENCE = 4299  # a token of silence; Turbo's package ends every utterance with three


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The upsampling conformer: `blocks` at the token rate, `up_blocks` at twice that."""

    width: int = 512
    heads: int = 8
    hidden: int = 2048
    blocks: int = 6
    up_blocks: int = 4


@dataclass(frozen=True, slots=True)
class EstimatorConfig:
    """The U-Net that predicts velocities: one block down, `mid_blocks`, one up, each with `layers` of attention."""

    channels: int = 256
    heads: int = 8
    head_width: int = 64
    layers: int = 4
    mid_blocks: int = 12
    meanflow: bool = False  # it predicts the mean velocity from t to r, so that two steps do


@dataclass(frozen=True, slots=True)
class VocoderConfig:
    """HiFT: convolutions up to one step an STFT hop, then the inverse STFT."""

    channels: int = 512
    f0_channels: int = 512
    rates: tuple[int, ...] = (8, 5, 3)
    kernels: tuple[int, ...] = (16, 11, 7)
    block_kernels: tuple[int, ...] = (3, 7, 11)
    source_kernels: tuple[int, ...] = (7, 7, 11)
    dilations: tuple[int, ...] = (1, 3, 5)
    n_fft: int = 16
    hop: int = 4

    @property
    def samples_per_frame(self) -> int:
        total = self.hop
        for rate in self.rates:
            total *= rate
        return total


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """S3 tokenizer, version 2, 25 tokens a second."""

    mels: int = 128
    width: int = 1280
    heads: int = 20
    layers: int = 6


@dataclass(frozen=True, slots=True)
class SpeakerConfig:
    """CAM++: dense TDNN layers that grow by `growth` channels each."""

    growth: int = 32
    channels: int = 128
    layers: tuple[int, ...] = (12, 24, 16)
    dilations: tuple[int, ...] = (1, 2, 2)
    embedding: int = 192


@dataclass(frozen=True, slots=True)
class S3GenConfig:
    """Everything between speech tokens and sound, and what reads a clip of the voice."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    vocoder: VocoderConfig = field(default_factory=VocoderConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    speaker: SpeakerConfig = field(default_factory=SpeakerConfig)


TURBO = S3GenConfig(estimator=EstimatorConfig(meanflow=True))
