"""Languages that Kokoro's voices speak, what each needs on this machine, and text to phonemes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from models.kokoro.english import English
from models.kokoro.spelling import FILE, SOURCE, Spelling
from models.weights.sources import fetch
from serving.errors import BadRequest

Phonemizer = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Language:
    """A language by its letter, with the modules that its G2P imports and how to get them."""

    name: str
    modules: tuple[str, ...]
    hint: str
    espeak: str | None = None  # espeak-ng's name of it, for those that nothing else speaks

    def missing(self, espeak: bool) -> str | None:
        """Why it cannot be spoken here, or None."""
        absent = [module for module in self.modules if find_spec(module) is None]
        if self.espeak and not espeak:
            return "espeak-ng, which is GPL and off by default: set `options: {espeak: true}` in the deployment"
        return f"{', '.join(absent)}: {self.hint}" if absent else None


ENGLISH = (("misaki", "spacy", "num2words"), "pip install 'multimodal-toolkit[kokoro]'")
ESPEAK = (("misaki", "phonemizer", "espeakng_loader"), "pip install misaki phonemizer-fork espeakng-loader")
# misaki's own extra asks for a build of OpenJTalk and for `unidic`, whose dictionary is a download of its own; these
# packages bring theirs.
JAPANESE = (
    ("misaki", "pyopenjtalk", "fugashi", "unidic_lite", "jaconv", "mojimoji"),
    "pip install misaki pyopenjtalk-plus fugashi unidic-lite jaconv mojimoji",
)
LANGUAGES = {
    "a": Language("American English", *ENGLISH),
    "b": Language("British English", *ENGLISH),
    "e": Language("Spanish", *ESPEAK, "es"),
    "f": Language("French", *ESPEAK, "fr-fr"),
    "h": Language("Hindi", *ESPEAK, "hi"),
    "i": Language("Italian", *ESPEAK, "it"),
    "j": Language("Japanese", *JAPANESE),
    "p": Language("Brazilian Portuguese", *ESPEAK, "pt-br"),
    "z": Language("Mandarin", ("misaki", "jieba", "pypinyin", "cn2an", "ordered_set"), "pip install 'misaki[zh]'"),
}


class G2P:
    """Phonemizers by language, each made when it is first needed."""

    def __init__(self, espeak: bool = False) -> None:
        self.espeak = espeak
        self._made: dict[str, Phonemizer] = {}
        self._lock = threading.Lock()  # neither spaCy nor espeak promises to be used by two threads at once

    def speakable(self, code: str) -> bool:
        """Whether this machine has what the language needs."""
        return code in LANGUAGES and LANGUAGES[code].missing(self.espeak) is None

    def __call__(self, code: str, text: str) -> str:
        """Phonemes of a text. Raises `BadRequest` with the way to get what the language needs."""
        language = LANGUAGES[code]
        absent = language.missing(self.espeak)
        if absent is not None:
            raise BadRequest(f"{language.name} needs {absent}.", param="voice", code="language_not_installed")
        with self._lock:
            if code not in self._made:
                self._made[code] = self._make(code)
            return self._made[code](" ".join(text.split()))

    def _make(self, code: str) -> Phonemizer:
        language = LANGUAGES[code]
        if code in "ab":
            return English(code == "b", self._fallback(code == "b"))
        if language.espeak:
            from misaki.espeak import EspeakG2P

            return _first(EspeakG2P(language=language.espeak))
        if code == "j":
            from misaki.ja import JAG2P

            return _first(JAG2P())
        from misaki.zh import ZHG2P

        return _first(ZHG2P())

    def _fallback(self, british: bool) -> Phonemizer:
        """For English words in no dictionary: espeak where it is wanted and here, else the learnt spelling rules."""
        if self.espeak and all(find_spec(module) for module in ESPEAK[0]):
            from misaki.espeak import EspeakFallback
            from misaki.token import MToken

            speak = EspeakFallback(british=british)
            return lambda word: speak(MToken(text=word, tag="", whitespace=""))[0] or ""
        return Spelling(fetch(SOURCE) / FILE, british)


def _first(g2p: Callable[[str], tuple[str, object]]) -> Phonemizer:
    return lambda text: g2p(text)[0]
