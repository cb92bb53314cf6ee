"""Text to T3's ids: a small BPE for English, graphemes with a language token for the others, GPT-2's for Turbo."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer as Bpe

from models.chatterbox.config import START_TEXT, STOP_TEXT
from models.chatterbox.text import prepared, punctuated
from serving.errors import SetupError

SPACE = "[SPACE]"
NEEDED = ("[START]", "[STOP]")


class Tokenizer(Protocol):
    """Text in a language to ids [S] int64, as T3 reads them."""

    def __call__(self, text: str, language: str) -> np.ndarray: ...


def _read(path: Path) -> Bpe:
    if not path.is_file():
        raise SetupError(f"{path.parent} has no {path.name}", param="weights")
    found = Bpe.from_file(str(path))
    missing = [token for token in NEEDED if found.token_to_id(token) is None]
    if missing:
        raise SetupError(f"{path.name} has no {' and no '.join(missing)}", param="weights")
    return found


def _framed(ids: list[int]) -> np.ndarray:
    return np.array([START_TEXT, *ids, STOP_TEXT], np.int64)


class English:
    """Chatterbox: spaces are a token of their own."""

    def __init__(self, path: Path) -> None:
        self._bpe = _read(path)

    def __call__(self, text: str, language: str) -> np.ndarray:
        return _framed(self.encode(punctuated(text)))

    def encode(self, text: str) -> list[int]:
        return self._bpe.encode(text.replace(" ", SPACE)).ids


class Multilingual:
    """Graphemes of 23 languages behind the language's token."""

    def __init__(self, path: Path) -> None:
        self._bpe, self._folder = _read(path), path.parent

    def __call__(self, text: str, language: str) -> np.ndarray:
        return _framed(self.encode(punctuated(text, wide=True), language))

    def encode(self, text: str, language: str) -> list[int]:
        spelled = f"[{language}]{prepared(text, language, self._folder)}"
        return self._bpe.encode(spelled.replace(" ", SPACE)).ids


class Turbo:
    """GPT-2's tokens, neither start nor stop."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        try:
            self._gpt2: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise SetupError(f"{folder} has no tokenizer: {error}", param="weights") from error

    def __call__(self, text: str, language: str) -> np.ndarray:
        return np.array(self._gpt2(punctuated(text, turbo=True)).input_ids, np.int64)
