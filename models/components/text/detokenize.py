"""Token ids to text as they come, for byte-level vocabularies; never half a character.

Every token of such a vocabulary stands for bytes of its own, so text is the decoded concatenation of them, and the
deltas of any chunking add up to the tokenizer's own decoding.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer, decoders

from serving.errors import SetupError


def byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What each id stands for. `pieces`: its bytes, none for special tokens; `special`: their names."""

    pieces: tuple[bytes, ...]
    special: dict[int, bytes]

    @classmethod
    def of(cls, tokenizer: Tokenizer, size: int | None = None) -> Vocabulary:
        """Of a byte-level tokenizer; `size`: ids that the model can choose, where that is more."""
        if not isinstance(tokenizer.decoder, decoders.ByteLevel):
            kind = type(tokenizer.decoder).__name__
            raise SetupError(f"Only byte-level tokenizers can be detokenised as they come; this one is {kind}.")
        alphabet, added = byte_alphabet(), tokenizer.get_added_tokens_decoder()
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        pieces = [b""] * max(size or 0, max(vocabulary.values()) + 1)
        for text, number in vocabulary.items():
            plain = number not in added and all(letter in alphabet for letter in text)
            pieces[number] = bytes(map(alphabet.__getitem__, text)) if plain else text.encode()
        special = {number: pieces[number] for number, token in added.items() if token.special}
        for number in special:
            pieces[number] = b""
        return cls(tuple(pieces), special)

    def __len__(self) -> int:
        return len(self.pieces)

    def shown(self, token: int) -> bytes:
        """The token's bytes, of a special one its name's."""
        return self.special.get(token) or self.pieces[token]


class Detokenizer:
    """Text from one sequence of tokens. What no token completes is U+FFFD, as in the tokenizer's own decoding."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """The text that this token completes: "" inside a character, or where it says nothing."""
        return self._decoder.decode(self._pieces[token])

    def feed_all(self, tokens: Iterable[int]) -> str:
        return "".join(map(self.feed, tokens))

    def finish(self) -> str:
        """What is left at the end: the beginning of a character, as U+FFFD, or ""."""
        return self._decoder.decode(b"", True)

    @property
    def pending(self) -> bool:
        """Whether a character has begun and not ended."""
        return bool(self._decoder.getstate()[0])
