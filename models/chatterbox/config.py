"""Sizes of T3, read from a checkpoint's shapes as it has no configuration file, and how the three models differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

SAMPLE_RATE = 24_000
SPEAKER = 256  # width of a speaker embedding
SPEECH_TOKENS = 6561  # ids from here on are control tokens and are never vocoded
START_SPEECH, STOP_SPEECH = 6561, 6562
START_TEXT, STOP_TEXT = 255, 0
HEAD_DIM = 64
LONGEST_TURBO = 8196  # positions of Turbo's backbone
# (layer, head) pairs of the multilingual backbone whose attention follows the text.
ALIGNED_HEADS = ((12, 15), (13, 11), (9, 2))


@dataclass(frozen=True, slots=True)
class T3Config:
    """`queries`: latents of the perceiver, 0 without one. `text_positions`, `speech_positions`: 0 for Turbo."""

    text_vocab: int
    speech_vocab: int
    width: int
    inner: int
    layers: int
    queries: int
    text_positions: int
    speech_positions: int

    @property
    def turbo(self) -> bool:
        """A GPT-2 backbone with positions of its own, no guidance, no emotion, the raw prompt as conditioning."""
        return not self.speech_positions

    @property
    def heads(self) -> int:
        return self.width // HEAD_DIM

    @property
    def aligned_heads(self) -> tuple[tuple[int, int], ...]:
        """The heads that the alignment analyser reads; a smaller network, made for tests, wraps them around."""
        return tuple((layer % self.layers, head % self.heads) for layer, head in ALIGNED_HEADS)

    def prefix(self, prompt: int) -> int:
        """Conditioning tokens that a prompt of so many speech tokens gives: speaker, prompt, emotion."""
        return 1 + prompt if self.turbo else 1 + self.queries + 1


def from_shapes(tensors: Mapping[str, Tensor]) -> T3Config:
    """The sizes of a T3 by its tensors, under the checkpoint's names."""

    def rows(name: str) -> int:
        return tensors[name].shape[0] if name in tensors else 0

    turbo = "tfmr.wpe.weight" in tensors
    layers = {name.split(".")[2] for name in tensors if name.startswith("tfmr.h." if turbo else "tfmr.layers.")}
    inner = tensors["tfmr.h.0.mlp.c_fc.weight"].shape[1] if turbo else rows("tfmr.layers.0.mlp.up_proj.weight")
    latents = tensors.get("cond_enc.perceiver.pre_attention_query")
    return T3Config(
        text_vocab=rows("text_emb.weight"),
        speech_vocab=rows("speech_emb.weight"),
        width=tensors["speech_emb.weight"].shape[1],
        inner=inner,
        layers=len(layers),
        queries=0 if latents is None else latents.shape[1],
        text_positions=rows("text_pos_emb.emb.weight"),
        speech_positions=rows("speech_pos_emb.emb.weight"),
    )


ENGLISH = T3Config(704, 8194, 1024, 4096, 30, 32, 2050, 4100)
MULTILINGUAL = T3Config(2454, 8194, 1024, 4096, 30, 32, 2050, 4100)
TURBO = T3Config(50276, 6563, 1024, 4096, 24, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the three models: its files, how it hears a reference clip, how it streams."""

    t3: T3Config
    t3_file: str
    speaker_file: str
    tokenizer_file: str
    prompt_seconds: int  # of the reference clip that become T3's prompt
    prompt_tokens: int  # most of those
    first_chunk: int  # speech tokens of the first streamed chunk
    silence: int = 0  # silent tokens put behind the speech
    analysed: bool = False  # the alignment analyser has a say on the end of speech
    levelled: bool = False  # a reference clip is brought to a common loudness


VARIANTS: Mapping[str, Variant] = {
    "chatterbox": Variant(ENGLISH, "t3_cfg.safetensors", "ve.safetensors", "tokenizer.json", 6, 150, 35),
    "chatterbox_multilingual": Variant(
        MULTILINGUAL,
        "t3_mtl23ls_v2.safetensors",
        "ve.pt",
        "grapheme_mtl_merged_expanded_v1.json",
        6,
        150,
        15,
        analysed=True,
    ),
    "chatterbox_turbo": Variant(
        TURBO, "t3_turbo_v1.safetensors", "ve.safetensors", "tokenizer.json", 15, 375, 15, silence=3, levelled=True
    ),
}
