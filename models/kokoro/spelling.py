"""How an English word that no dictionary has is probably said: a small GRU from letters to ARPAbet.

The weights are those of the package g2p-en (Park and Kim, Apache-2.0), read from its wheel: importing the package
would download a tagger, and nothing else of it is needed.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import numpy as np

from models.weights.sources import Package

SOURCE = Package(
    "g2p-en",
    "2.1.0",
    "2a7aabf1fc7f270fcc3349881407988c9245173c2413debbe5432f4a4f31319f",
    {"g2p_en/checkpoint20.npz": "b8af35e4596d8dd5836dfd3fe9b2ba4f97b9c311efe8879544cbcfcbd566d8c6"},
)
FILE = "g2p_en/checkpoint20.npz"
LONGEST = 20  # phonemes of a word
LETTERS = {letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz", 3)}
UNKNOWN, END_OF_WORD = 1, 2
START, STOP = 2, 3
SOUNDS = (
    "<pad> <unk> <s> </s> AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1"
    " EH2 ER0 ER1 ER2 EY0 EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH"
    " UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH"
)
PAIRS = (
    "AA ɑ AE æ AH ʌ AO ɔ AW W AY I EH ɛ ER ɜɹ EY A IH ɪ IY i OW O OY Y UH ʊ UW u B b CH ʧ D d DH ð F f G ɡ HH h JH ʤ"
    " K k L l M m N n NG ŋ P p R ɹ S s SH ʃ T t TH θ V v W w Y j Z z ZH ʒ"
)
ARPABET = SOUNDS.split()
AMERICAN = dict(zip(PAIRS.split()[::2], PAIRS.split()[1::2], strict=True))
BRITISH = AMERICAN | {"AA": "ɑː", "AE": "a", "AO": "ɔː", "ER": "ɜː", "IY": "iː", "OW": "Q", "UW": "uː"}
STRESS = {"1": "ˈ", "2": "ˌ"}


class Spelling:
    """word -> phonemes in Kokoro's alphabet."""

    def __init__(self, path: Path, british: bool = False) -> None:
        self.weights = dict(np.load(path))
        self.table = BRITISH if british else AMERICAN
        self.reduced = {"AH": "ə", "ER": "ə" if british else "əɹ"}

    def __call__(self, word: str) -> str:
        """Phonemes of a word; "" for one without letters."""
        plain = unicodedata.normalize("NFD", word).lower()
        letters = re.sub(r"[^a-z]", "", plain)
        return "".join(map(self._phoneme, self._arpabet(letters))) if letters else ""

    def _phoneme(self, sound: str) -> str:
        name, stress = sound.rstrip("012"), sound[-1]
        if stress not in STRESS and name in self.reduced:
            return self.reduced[name]
        return STRESS.get(stress, "") + self.table[name]

    def _arpabet(self, letters: str) -> list[str]:
        w, hidden = self.weights, np.zeros(self.weights["enc_w_hh"].shape[1], np.float32)
        for i in [*(LETTERS.get(letter, UNKNOWN) for letter in letters), END_OF_WORD]:
            hidden = self._step("enc", w["enc_emb"][i], hidden)
        sounds: list[str] = []
        last = START
        while len(sounds) < LONGEST:
            hidden = self._step("dec", w["dec_emb"][last], hidden)
            last = int((w["fc_w"] @ hidden + w["fc_b"]).argmax())
            if last <= STOP:
                break
            sounds.append(ARPABET[last])
        return sounds

    def _step(self, side: str, x: np.ndarray, hidden: np.ndarray) -> np.ndarray:
        """A GRU cell; gates are stored reset, update, new."""
        w = self.weights
        of_x = np.split(w[f"{side}_w_ih"] @ x + w[f"{side}_b_ih"], 3)
        of_h = np.split(w[f"{side}_w_hh"] @ hidden + w[f"{side}_b_hh"], 3)
        reset, update = (1 / (1 + np.exp(-(a + b))) for a, b in zip(of_x[:2], of_h[:2], strict=True))
        new = np.tanh(of_x[2] + reset * of_h[2])
        return (1 - update) * new + update * hidden
