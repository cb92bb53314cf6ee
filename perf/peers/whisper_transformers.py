"""transformers' Whisper on the tiny.en weights that the toolkit serves, with the rules of a greedy transcription."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile
import torch
from scipy.signal import resample_poly
from tokenizers import Tokenizer
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from models.weights.sources import fetch
from models.whisper import SOURCES
from models.whisper.config import WhisperConfig as Dims
from models.whisper.weights import TRANSFORMERS, read, renamed

KEY = "whisper_tiny_en"
RATE = 16_000
START, END, NO_TIMESTAMPS = 50_257, 50_256, 50_362


def samples_of(wav: bytes) -> np.ndarray:
    """Samples at 16 kHz [T] of a WAV file."""
    samples, rate = soundfile.read(io.BytesIO(wav), dtype="float32")
    return samples if rate == RATE else resample_poly(samples, RATE, rate).astype("float32")


class Transcriber:
    """Texts of clips, together in one batch."""

    def __init__(self) -> None:
        folder = next(fetch(SOURCES[KEY]).rglob("config.json")).parent
        self._net = network(folder)
        self._features = WhisperFeatureExtractor()
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def __call__(self, wavs: Sequence[bytes]) -> list[str]:
        heard = self._features([samples_of(wav) for wav in wavs], sampling_rate=RATE, return_tensors="pt")
        with torch.inference_mode():
            said = self._net.generate(heard.input_features, max_new_tokens=224)
        return [text.strip() for text in self._tokenizer.decode_batch(said.tolist())]


def network(folder: Path) -> WhisperForConditionalGeneration:
    """The model with the key's tensors and its rules of decoding."""
    dims, tensors = read(folder)
    made = WhisperForConditionalGeneration(_configuration(dims))
    names = [name for name in made.state_dict() if name != "proj_out.weight"]  # tied to the embedding
    made.load_state_dict({name: tensors[renamed(name, TRANSFORMERS)] for name in names}, strict=False)
    said, rules = json.loads((folder / "config.json").read_text()), made.generation_config
    rules.suppress_tokens, rules.begin_suppress_tokens = said["suppress_ids"], said["suppress_ids_begin"]
    rules.max_length = None
    vars(rules).update(no_timestamps_token_id=NO_TIMESTAMPS, is_multilingual=False)  # Whisper's own, not in the class
    return made.eval()


def _configuration(dims: Dims) -> WhisperConfig:
    return WhisperConfig(
        vocab_size=dims.n_vocab,
        num_mel_bins=dims.n_mels,
        d_model=dims.n_audio_state,
        encoder_layers=dims.n_audio_layer,
        decoder_layers=dims.n_text_layer,
        encoder_attention_heads=dims.n_audio_head,
        decoder_attention_heads=dims.n_text_head,
        encoder_ffn_dim=4 * dims.n_audio_state,
        decoder_ffn_dim=4 * dims.n_text_state,
        max_source_positions=dims.n_audio_ctx,
        max_target_positions=dims.n_text_ctx,
        decoder_start_token_id=START,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
    )
