"""Text as the networks were trained on it: punctuation, and what some languages need before they are tokenised.

Packages for readings and stress are optional, as in the reference: without one the text stays as it is, and the log
says so once. Those with a licence that allows it are the extra "multilingual".
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
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
TOOLS: Mapping[str, tuple[str, str, Callable[[Any], Callable[[str], Any]]]] = {
    "ja": ("pykakasi", "the reading of Japanese characters", lambda package: package.kakasi().convert),
    "he": ("dicta_onnx", "pointing Hebrew", lambda package: package.Dicta().add_diacritics),
    "ru": (
        "russian_text_stresser.text_stresser",
        "stress in Russian words",
        lambda package: package.RussianTextStresser().stress_text,
    ),
    "zh": ("spacy_pkuseg", "cutting Chinese into words", lambda package: package.pkuseg().cut),
}


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
    if language == "zh":
        return _cangjie(text, cangjie_table(folder / "Cangjie5_TC.json"))
    if language in ("he", "ru"):
        return _marked(text, language)
    return {"ko": _jamo, "ja": _kana}.get(language, str)(text)


@cache
def tool(language: str) -> Callable[[str], Any] | None:
    """What a package does for a language; None, said in the log, where it is missing or does not start."""
    module, purpose, make = TOOLS[language]
    name = module.partition(".")[0]
    try:
        return make(import_module(module))
    except ImportError:
        log.warning("%s is not installed: %s is skipped", name, purpose)
    except Exception as error:  # some look for a model of their own when they start
        log.warning("%s does not start (%s): %s is skipped", name, error, purpose)
    return None


def _marked(text: str, language: str) -> str:
    """The text as the language's package gives it back; a text that it fails on stays, as in the reference."""
    use = tool(language)
    try:
        return text if use is None else use(text)
    except Exception as error:
        log.warning("%s fails on a text, which stays: %s", TOOLS[language][0].partition(".")[0], error)
        return text


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


def _kana(text: str) -> str:
    """Kanji to hiragana by pykakasi; katakana stay."""
    convert = tool("ja")
    if convert is None:
        return text
    return normalize("NFKD", "".join(_reading(part["orig"], part["hira"]) for part in convert(text)))


def _reading(written: str, read: str) -> str:
    if not any("\u4e00" <= char <= "\u9fff" for char in written):
        return written
    return f" {read}" if read[:1] in ("は", "へ") and read else read


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


def _cangjie(text: str, codes: dict[str, str]) -> str:
    """Chinese characters to the tokens of their Cangjie keys."""
    cut = tool("zh")
    return "".join(_spelled(char, codes) for char in (text if cut is None else " ".join(cut(text))))


def _spelled(char: str, codes: dict[str, str]) -> str:
    code = codes.get(char) if category(char) == "Lo" else None
    return char if code is None else "".join(f"[cj_{key}]" for key in code) + "[cj_.]"
