"""Whisper's vocabulary: byte-level BPE from `tokenizer.json`, special tokens by their place behind it."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer as Bpe

from models.whisper.config import WhisperConfig
from models.whisper.languages import LANGUAGES
from serving.errors import BadRequest, SetupError

SPECIAL = re.compile(r"<\|[^|<>]*\|>")
NOT_SPOKEN = '"#()*+/:;<=>@[\\]^_`{|}~「」『』'
NOT_SPOKEN_GROUPS = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"
NOTES = "♩♪♫♬♭♮♯"
UNSPACED = {"zh", "ja", "th", "lo", "my", "yue"}
REPLACEMENT = "\ufffd"


class Tokenizer:
    """Ids and text of one checkpoint. Ids at or above `eot` are special; from `timestamps` on, times of 20 ms."""

    def __init__(self, path: Path, config: WhisperConfig) -> None:
        if not path.is_file():
            raise SetupError(f"{path.parent} has no {path.name}", param="weights")
        self.bpe = Bpe.from_file(str(path))
        self.multilingual = config.multilingual
        self.languages = tuple(LANGUAGES)[: config.languages]
        self.eot = 50_257 if config.multilingual else 50_256
        self.sot = self.eot + 1
        after = self.sot + 1 + config.languages
        self.translate, self.transcribe, self.sot_lm, self.sot_prev, self.no_speech, self.no_timestamps = range(
            after, after + 6
        )
        self.timestamps = after + 6
        if self.bpe.token_to_id("<|startoftranscript|>") != self.sot:
            raise SetupError(f"{path} is not the tokenizer of a vocabulary of {config.n_vocab}", param="weights")

    def encode(self, text: str, param: str | None = None) -> list[int]:
        """Ids of plain text. Raises `BadRequest` for text with special tokens in it."""
        if found := SPECIAL.search(text):
            raise BadRequest(f"The text may not contain the special token {found[0]}.", param=param)
        return self.bpe.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; timestamps are left out, bytes that are no UTF-8 replaced."""
        return self.bpe.decode([i for i in ids if i < self.timestamps], skip_special_tokens=False)

    def language_token(self, language: str) -> int:
        return self.sot + 1 + self.languages.index(language)

    def start(self, language: str, task: str) -> tuple[int, ...]:
        """The tokens that every transcript starts with; English-only models have no language and no task."""
        if not self.multilingual:
            return (self.sot,)
        return (self.sot, self.language_token(language), self.transcribe if task == "transcribe" else self.translate)

    @cached_property
    def blanks(self) -> tuple[int, ...]:
        """What a transcript may not begin with."""
        return (*self.encode(" "), self.eot)

    @cached_property
    def not_spoken(self) -> tuple[int, ...]:
        """Tokens of annotations that nobody speaks: brackets, notes, speaker marks; hyphens at a word's start.

        The notes U+2640 to U+267F may take several tokens; their first is shared by that block alone.
        """
        found = {self.encode(" -")[0], self.encode(" '")[0]}
        for symbol in [*NOT_SPOKEN, *NOT_SPOKEN_GROUPS.split(), *NOTES]:
            for ids in (self.encode(symbol), self.encode(f" {symbol}")):
                if len(ids) == 1 or symbol in NOTES:
                    found.add(ids[0])
        return tuple(sorted(found))

    @cached_property
    def not_sampled(self) -> tuple[int, ...]:
        """Special tokens that only a prompt holds."""
        return (self.translate, self.transcribe, self.sot, self.sot_prev, self.sot_lm, self.no_speech)

    def words(self, ids: Sequence[int], language: str) -> tuple[list[str], list[list[int]]]:
        """Words and their ids; the end token is a word. Languages without spaces split at every character."""
        texts, groups = self._characters(ids)
        if language in UNSPACED:
            return texts, groups
        words: list[str] = []
        held: list[list[int]] = []
        for text, group in zip(texts, groups, strict=True):
            alone = group[0] >= self.eot or text.startswith(" ") or text.strip() in string.punctuation
            if alone or not words:
                words.append(text)
                held.append(group)
            else:
                words[-1] += text
                held[-1].extend(group)
        return words, held

    def _characters(self, ids: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """The shortest runs of ids whose bytes are whole characters, or are no character in the full text either."""
        whole, offset = self._raw(ids), 0
        texts: list[str] = []
        groups: list[list[int]] = []
        run: list[int] = []
        for token in ids:
            run.append(token)
            text = self._raw(run)
            cut = text.find(REPLACEMENT)
            if cut < 0 or whole[offset + cut] == REPLACEMENT:
                texts.append(text)
                groups.append(run)
                run = []
                offset += len(text)
        return texts, groups

    def _raw(self, ids: Sequence[int]) -> str:
        return self.bpe.decode(list(ids), skip_special_tokens=False)
