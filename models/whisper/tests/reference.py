"""openai-whisper as the reference: tiny models of its own, and its vocabulary as a `tokenizer.json`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import whisper
from tokenizers import AddedToken
from transformers.convert_slow_tokenizer import TikTokenConverter
from whisper.model import ModelDimensions
from whisper.tokenizer import LANGUAGES

ASSETS = Path(whisper.__file__).parent / "assets"
PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def dimensions(multilingual: bool, **changes: int) -> ModelDimensions:
    """Two layers of two heads of 64, the real vocabulary and window, transcripts of at most 48 tokens."""
    sizes = {
        "n_mels": 80,
        "n_audio_ctx": 1500,
        "n_audio_state": 128,
        "n_audio_head": 2,
        "n_audio_layer": 2,
        "n_vocab": 51_865 if multilingual else 51_864,
        "n_text_ctx": 96,
        "n_text_state": 128,
        "n_text_head": 2,
        "n_text_layer": 2,
    }
    return ModelDimensions(**(sizes | changes))


def model(multilingual: bool, seed: int = 0, **changes: int) -> whisper.model.Whisper:
    """Every parameter and buffer from one seeded generator, large enough to matter."""
    made = whisper.model.Whisper(dimensions(multilingual, **changes))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in sorted(made.state_dict().items()):
            tensor.normal_(std=0.08, generator=generator)
            if "ln" in name and name.endswith("weight"):
                tensor.add_(1)
    return made.eval().requires_grad_(False)


@cache
def _tokenizer(multilingual: bool) -> str:
    name = "multilingual" if multilingual else "gpt2"
    languages = list(LANGUAGES)[:99]
    special = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in languages)]
    special += ["<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>"]
    special += ["<|notimestamps|>", *(f"<|{i * 0.02:.2f}|>" for i in range(1501))]
    bpe = TikTokenConverter(vocab_file=str(ASSETS / f"{name}.tiktoken"), pattern=PATTERN).converted()
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return bpe.to_str()


def write_tokenizer(folder: Path, multilingual: bool) -> Path:
    """The reference's vocabulary as a `tokenizer.json` in the folder."""
    path = folder / "tokenizer.json"
    path.write_text(_tokenizer(multilingual))
    return path


def save(made: whisper.model.Whisper, folder: Path) -> Path:
    """A checkpoint folder in openai-whisper's own layout."""
    saved = {"dims": vars(made.dims), "model_state_dict": made.state_dict()}
    torch.save(saved, folder / "model.pt")
    write_tokenizer(folder, made.is_multilingual)
    return folder
