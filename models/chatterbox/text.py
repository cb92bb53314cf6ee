"""Text as the networks were trained on it: punctuation, and what some languages need before they are tokenised.

Packages for readings and stress are optional, as in the reference: without one the text stays as it is, and the log
says so once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unicodedata import category, normalize

log = logging.getLogger("toolkit.chatterbox")

LATIN_ENDS = (".", "!", "?", "-", ",")
WIDE_ENDS = ("、", "，", "。", "？", "！")
# In this order; Turbo knows neither of the first, third and fifth.
REPLACED = (
    ("...", ", "),
    ("…", ", "),
    (":", ","),
    (" - ", ", "),
    (";", ", "),
    ("—", "-"),
    ("–", "-"),
    (" ,", ","),
    ("“", '"'),
    ("”", '"'),
    ("‘", "'"),
    ("’", "'"),
)
NOT_IN_TURBO = ("...", " - ", ";")
HANGUL, LEADS, VOWELS, TAILS = 0xAC00, 0x1100, 0x1161, 0x11A7
SYLLABLES, PER_LEAD, PER_VOWEL = 0xD7AF - 0xAC00 + 1, 21 * 28, 28


def punctuated(text: str, *, turbo: bool = False, wide: bool = False) -> str:
    """The text with a capital first letter, single spaces, plain punctuation and an end.

    `wide`: East Asian punctuation ends a text too. The text is not empty.
    """
    text = " ".join((text[0].upper() + text[1:] if text[0].islower() else text).split())
    for old, new in REPLACED:
        if not (turbo and old in NOT_IN_TURBO):
            text = text.replace(old, new)
    text = text.rstrip(" ")
    return text if text.endswith(LATIN_ENDS + (WIDE_ENDS if wide else ())) else text + "."


def prepared(text: str, language: str, folder: Path) -> str:
    """Lower case, NFKD, and what the language needs. `folder` holds the checkpoint's tables."""
    text = normalize("NFKD", text.lower())
    special = {"ko": _jamo, "ja": _kana, "he": _diacritics, "ru": _stress}
    if language == "zh":
        return _cangjie(text, cangjie_table(folder / "Cangjie5_TC.json"))
    return special.get(language, str)(text)


@cache
def optional(module: str, purpose: str) -> Any:
    """A package that may be missing: then None, and the log says what is skipped."""
    try:
        return import_module(module)
    except ImportError:
        log.warning("%s is not installed: %s is skipped", module.partition(".")[0], purpose)
        return None


def _jamo(text: str) -> str:
    """Hangul syllables to their letters (Unicode's conjoining jamo)."""
    return "".join(map(_letters, text)).strip()


def _letters(char: str) -> str:
    at = ord(char) - HANGUL
    if not 0 <= at < SYLLABLES:
        return char
    tail = at % PER_VOWEL
    letters = chr(LEADS + at // PER_LEAD) + chr(VOWELS + at % PER_LEAD // PER_VOWEL)
    return letters + (chr(TAILS + tail) if tail else "")


@cache
def _kakasi() -> Callable[[str], list[dict[str, str]]] | None:
    module = optional("pykakasi", "the reading of Japanese characters")
    return None if module is None else module.kakasi().convert


def _kana(text: str) -> str:
    """Kanji to hiragana by pykakasi; katakana stay."""
    convert = _kakasi()
    if convert is None:
        return text
    return normalize("NFKD", "".join(_reading(part["orig"], part["hira"]) for part in convert(text)))


def _reading(written: str, read: str) -> str:
    if not any("\u4e00" <= char <= "\u9fff" for char in written):
        return written
    return f" {read}" if read[:1] in ("は", "へ") and read else read


@cache
def _speller(module: str, name: str, method: str, purpose: str) -> Callable[[str], str] | None:
    found = optional(module, purpose)
    return None if found is None else getattr(getattr(found, name)(), method)


def _diacritics(text: str) -> str:
    add = _speller("dicta_onnx", "Dicta", "add_diacritics", "pointing Hebrew")
    return text if add is None else add(text)


def _stress(text: str) -> str:
    add = _speller(
        "russian_text_stresser.text_stresser", "RussianTextStresser", "stress_text", "stress in Russian words"
    )
    return text if add is None else add(text)


@cache
def cangjie_table(path: Path) -> dict[str, str]:
    """Character -> its Cangjie code, with a number behind it where an earlier character has the code too."""
    if not path.is_file():
        log.warning("%s is missing: Chinese characters are not spelled", path.name)
        return {}
    codes: dict[str, str] = {}
    shared: dict[str, list[str]] = {}
    for entry in json.loads(path.read_text(encoding="utf-8")):
        word, code = entry.split("\t")[:2]
        codes[word] = code
        shared.setdefault(code, []).append(word)
    return {word: code + (str(at) if (at := shared[code].index(word)) else "") for word, code in codes.items()}


@cache
def _segmenter() -> Callable[[str], list[str]] | None:
    module = optional("spacy_pkuseg", "cutting Chinese into words")
    return None if module is None else module.pkuseg().cut


def _cangjie(text: str, codes: dict[str, str]) -> str:
    """Chinese characters to the tokens of their Cangjie keys."""
    cut = _segmenter()
    return "".join(_spelled(char, codes) for char in (text if cut is None else " ".join(cut(text))))


def _spelled(char: str, codes: dict[str, str]) -> str:
    code = codes.get(char) if category(char) == "Lo" else None
    return char if code is None else "".join(f"[cj_{key}]" for key in code) + "[cj_.]"
